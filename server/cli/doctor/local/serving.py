"""Check the sandbox and its limits, the proxies in front, and the port."""

import asyncio
import ipaddress
import socket
from urllib.parse import urlsplit

from toolgate.server.cli.doctor.local.machine import find_namespace_remedy
from toolgate.server.cli.doctor.report import CheckFailedError, CheckFinding, CheckNote, CheckSkippedError
from toolgate.server.config.load import Config
from toolgate.server.config.types import is_loopback
from toolgate.server.protocol.errors import UsageError

PROBE_TIMEOUT = 3.0  # seconds for a server of ours to answer


async def sandbox(config: Config) -> CheckFinding:
    from toolgate.server.workspaces import sandboxing  # start-up

    kernel = find_namespace_remedy()
    try:
        found = await asyncio.to_thread(sandboxing.probe_sandbox, config)
    except UsageError as error:
        remedy = (
            "do what it says" if str(error).startswith("--state") else "fix what is named, or choose another --sandbox"
        )
        raise CheckFailedError(str(error), kernel or remedy) from None
    if found is None:
        raise CheckSkippedError("stdio has none without --sandbox: commands run as the user who starts the client")
    lacking = "".join(f"; no stronger one: {why}" for why in found.lacking)
    if found.level == "none":
        risk = "anyone with tools:shell has all permissions of this user"
        raise CheckFailedError(f"{found.describe()}{lacking}", f"{risk}: {kernel or 'install bubblewrap'}")
    return found.describe() + lacking


async def limits(config: Config) -> CheckFinding:
    """Check the control group that limits all commands of a principal, by making one and removing it."""
    if config.sandbox_level == "none":
        raise CheckSkippedError("without a sandbox the limits hold for each process alone")
    from toolgate.tools import cgroups  # start-up

    found = await asyncio.to_thread(cgroups.find)
    if isinstance(found, str):
        return CheckNote(
            f"limits hold for each process, not for all of a principal together: {found}",
            "delegate a control group: Delegate=yes in the unit, or --cgroupns=private and a writable /sys/fs/cgroup",
        )
    told = str(found)
    await asyncio.to_thread(found.close, 0.0)
    return told


async def proxies(config: Config) -> CheckFinding:
    """Check that proxies in front are known. Otherwise all people seem to come from one address, and whoever guesses
    passwords slows down the others."""
    if not config.is_remote or config.auth == "none":
        raise CheckSkippedError("people do not sign in here")
    from toolgate.server.auth import setup  # start-up
    from toolgate.server.http_app import can_reach_machine

    wide = [each for each in config.trusted_proxies if ipaddress.ip_network(each.strip()).prefixlen == 0]
    if wide:
        raise CheckFailedError(
            f"--trusted-proxies {wide[0]} trusts everybody: callers could claim any address",
            "name the address of the proxy",
        )
    forged = setup.describe_forgeable_header(config)
    if forged and can_reach_machine(config, config.sandbox_level):
        raise CheckFailedError(f"{forged}, and so can commands", setup.PROVE_PROXY)
    if forged:
        return CheckNote(forged, setup.PROVE_PROXY)
    public = urlsplit(config.public_url or "http://127.0.0.1")
    if public.scheme == "https" and not config.trusted_proxies:
        return CheckNote(
            f"{config.public_url} has a proxy in front that --trusted-proxies does not name: all people seem to "
            "come from one address, and are slowed down together",
            "name its address: 127.0.0.1 if it runs on this machine",
        )
    if config.trusted_proxies and is_loopback(public.hostname or "") and public.scheme == "http":
        return CheckNote(
            "--trusted-proxies is given, but the public URL is on loopback",
            "set --public-url to the https URL clients use, or drop --trusted-proxies",
        )
    named = ", ".join(config.trusted_proxies)
    return f"{named} are trusted" if named else "none needed"


async def port(config: Config) -> CheckFinding:
    if not config.is_remote:
        raise CheckSkippedError("stdio needs none")
    where = f"{config.host}:{config.port}"
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(config.host, config.port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind, protocol) as bound:
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            bound.bind(address)
    except OSError as error:
        if await _is_toolgate(config.host, config.port):
            return f"{where} is in use by a running Toolgate"
        reason = (error.strerror or str(error)).lower()
        raise CheckFailedError(
            f"{where}: {reason}", "stop what uses it, or choose another with --host and --port"
        ) from None
    return f"{where} is free"


async def _is_toolgate(host: str, port: int) -> bool:
    from toolgate.server.cli.mcp_client.client import McpClientError
    from toolgate.server.cli.mcp_client.http import open_response

    named = f"[{host}]" if ":" in host else host
    try:
        async with (
            asyncio.timeout(PROBE_TIMEOUT),
            open_response("GET", f"http://{named}:{port}/health", {}, b"") as response,
        ):
            return response.status == 200
    except (McpClientError, TimeoutError):
        return False
