"""Check the options, the sandbox and its limits, proxies, clients' metadata documents, and the port."""

import asyncio
import ipaddress
import socket
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from toolgate.server.base.errors import UsageError
from toolgate.server.cli.doctor.machine import find_namespace_remedy
from toolgate.server.cli.doctor.report import CheckError, CheckFinding, CheckNote, CheckSkippedError
from toolgate.server.config.load import Config
from toolgate.server.config.types import is_loopback

PROBE_TIMEOUT = 3.0  # seconds for a server of ours to answer


async def sandbox(config: Config) -> CheckFinding:
    from toolgate.server.workspaces import sandboxing  # start-up

    kernel = find_namespace_remedy()
    try:
        found = await asyncio.to_thread(sandboxing.probe_sandbox, config)
    except UsageError as error:
        remedy = "do what it says" if str(error).startswith("--state") else "fix that, or choose another --sandbox"
        raise CheckError(str(error), kernel or remedy) from None
    if found is None:
        raise CheckSkippedError("stdio has none without --sandbox: commands run as the user who starts the client")
    lacking = "".join(f"; no stronger one: {why}" for why in found.lacking)
    if found.level == "none":
        risk = "anyone with tools:shell has all permissions of this user"
        raise CheckError(f"{found.describe()}{lacking}", f"{risk}: {kernel or 'install bubblewrap'}")
    return found.describe() + lacking


async def limits(config: Config) -> CheckFinding:
    """Check the control group with a principal's limits, by creating and removing one."""
    if config.sandbox_level == "none":
        raise CheckSkippedError("without a sandbox the limits hold for each process alone")
    from toolgate.tools.workspace.sandbox import cgroups  # start-up

    found = await asyncio.to_thread(cgroups.find)
    if isinstance(found, str):
        return CheckNote(
            f"limits hold for each process, not for all of a principal together: {found}",
            "delegate a control group: Delegate=yes in the unit, or --cgroupns=private and a writable /sys/fs/cgroup",
        )
    name = str(found)
    await asyncio.to_thread(found.close, 0.0)
    return name


async def proxies(config: Config) -> CheckFinding:
    """Check that proxies are configured. Otherwise all people share one address, and one guesser slows down all."""
    if not config.is_remote or config.auth == "none":
        raise CheckSkippedError("people do not sign in here")
    from toolgate.server.auth import setup  # start-up

    wide = [each for each in config.trusted_proxies if ipaddress.ip_network(each.strip()).prefixlen == 0]
    if wide:
        raise CheckError(
            f"--trusted-proxies {wide[0]} trusts everybody: callers could claim any address",
            "name the address of the proxy",
        )
    forged = setup.describe_forgeable_header(config)
    if forged and config.can_commands_reach_host(config.sandbox_level):
        raise CheckError(f"{forged}, and so can commands", setup.PROVE_PROXY)
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
        raise CheckError(f"{where}: {reason}", "stop what uses it, or choose another with --host and --port") from None
    return f"{where} is free"


async def _is_toolgate(host: str, port: int) -> bool:
    from toolgate.server.cli.mcp_client.client import McpClientError
    from toolgate.server.cli.mcp_client.http import open_response

    name = f"[{host}]" if ":" in host else host
    try:
        async with asyncio.timeout(PROBE_TIMEOUT), open_response("GET", f"http://{name}:{port}/health", {}, b"") as got:
            return got.status == 200
    except (McpClientError, TimeoutError):
        return False


async def options(config: Config) -> str:
    """Check for options that a start would refuse."""
    if not config.is_remote:
        return "for stdio; add -t or -s and your other options to check those"
    from toolgate.server.app import http_checks  # start-up
    from toolgate.server.app.features import check_options

    try:
        http_checks.check_http(config)
        check_options(config)
    except UsageError as error:
        raise CheckError(str(error), "change the option that is named") from None
    return "a server can start with them"


if TYPE_CHECKING:
    from toolgate.tools.api.outbound.fetch import Web


async def documents(config: Config) -> CheckFinding:
    if not config.is_remote or config.auth != "oauth":
        raise CheckSkippedError("clients do not sign in here")
    if config.registration not in ("open", "metadata"):
        raise CheckSkippedError(f"--registration {config.registration} accepts none")
    from toolgate.server.auth.clients import document_copies
    from toolgate.server.auth.clients.metadata_documents import is_accepted_host
    from toolgate.server.auth.setup import client_fetch_hosts  # start-up
    from toolgate.tools.api.outbound.fetch import Web

    urls = [url for url in document_copies.DOCUMENT_COPIES if is_accepted_host(url, config.client_hosts)]
    if not urls:
        raise CheckSkippedError("--client-hosts accepts none of the well-known hosts")
    web = Web(client_fetch_hosts(config.allow_private, config.public_url or "http://127.0.0.1"))
    try:
        failures = [fault for fault in await asyncio.gather(*(_find_failure(web, url) for url in urls)) if fault]
    finally:
        await web.close()
    if not failures:
        return f"fetched: {', '.join(urls)}"
    remedy = "let this server reach that host, or start it with --registration "
    others = "open: only clients with a copy here can come" if config.registration == "metadata" else "dynamic"
    return CheckNote("; ".join(failures), remedy + others)


async def _find_failure(web: "Web", url: str) -> str:
    """Return why the document at `url` can't be fetched, or ""."""
    from toolgate.server.auth.clients.metadata_documents import fetch_json  # start-up
    from toolgate.tools.api.errors import ToolError

    try:
        page = await fetch_json(web.fetch, url)
    except ToolError as error:
        return f"{url}: {error.text}"
    return "" if page.status == 200 else f"{url} answers {page.status}"
