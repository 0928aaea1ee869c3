"""Open a conversation with a mounted server, over what its mount names."""

from collections.abc import Awaitable, Callable, Collection, Mapping
from typing import Any

from toolgate.server.features.mounts.config.mount_config import MountConfig
from toolgate.server.features.mounts.upstream.errors import MountError
from toolgate.server.features.mounts.upstream.handshake import shake_hands
from toolgate.server.features.mounts.upstream.http import HttpWire
from toolgate.server.features.mounts.upstream.http_client import HttpClient
from toolgate.server.features.mounts.upstream.peer import UpstreamPeer
from toolgate.server.features.mounts.upstream.program import ProgramWire
from toolgate.server.features.mounts.upstream.session import UpstreamSession
from toolgate.server.features.mounts.upstream.sse import SseWire
from toolgate.tools.workspace.workspace import ProgramStream

OPEN_TIMEOUT = 60.0  # seconds for the first answer: a program may have to be loaded

OnNotice = Callable[[str, dict[str, Any]], None]
StartProgram = Callable[[], Awaitable[ProgramStream]]


async def open_program(
    mount: MountConfig,
    start: StartProgram,
    capabilities: Mapping[str, Any],
    on_notice: OnNotice,
    hidden: Collection[str],
) -> UpstreamSession:
    """Start the mount's command with `start`, and return the conversation with it. What is `hidden` is not repeated of
    its words. Raises MountError."""
    try:
        return await _talk_to_program(start, capabilities, on_notice, mount.protocol, hidden)
    except MountError as error:
        if mount.protocol != "auto" or error.code != "STDIO_EXITED_BEFORE_INITIALIZE":
            raise
        # some end at the first request that they don't know
        return await _talk_to_program(start, capabilities, on_notice, "legacy", hidden)


async def _talk_to_program(
    start: StartProgram,
    capabilities: Mapping[str, Any],
    on_notice: OnNotice,
    protocol: Any,
    hidden: Collection[str],
) -> UpstreamSession:
    peer = UpstreamPeer(on_notice)
    wire = peer.wire = ProgramWire(await start(), peer, hidden)
    try:
        return await shake_hands(peer, protocol, capabilities, OPEN_TIMEOUT)
    except MountError as error:
        has_ended = (peer.failure or error.fault).code in ("STDIO_EXITED", "STDIO_CLOSED")  # maybe unasked
        said = await wire.read_last_words() if error.code == "INITIALIZE_TIMEOUT" else ""
        await wire.close()
        if said:
            raise MountError(error.code, f"{error.sentence}; {said}") from None
        if has_ended:
            raise MountError("STDIO_EXITED_BEFORE_INITIALIZE", error.sentence) from None
        raise
    except BaseException:
        await wire.close()
        raise


async def open_url(
    mount: MountConfig, client: HttpClient, capabilities: Mapping[str, Any], on_notice: OnNotice
) -> UpstreamSession:
    """Return a conversation with the server at the mount's URL. Raises MountError."""
    if not mount.is_sse:
        try:
            return await _talk_over_http(mount, client, capabilities, on_notice)
        except MountError as error:
            if error.code not in ("HTTP_STATUS", "NOT_MCP") or mount.protocol == "modern":
                raise
            fault = error.fault
        try:
            return await _talk_over_sse(mount, client, capabilities, on_notice)
        except MountError as error:
            if error.code == "SIGN_IN_REQUIRED":  # it does speak HTTP+SSE
                raise
            raise fault.create_error() from None
    return await _talk_over_sse(mount, client, capabilities, on_notice)


async def _talk_over_http(
    mount: MountConfig, client: HttpClient, capabilities: Mapping[str, Any], on_notice: OnNotice
) -> UpstreamSession:
    peer = UpstreamPeer(on_notice)
    peer.wire = wire = HttpWire(client, peer)
    try:
        session = await shake_hands(peer, mount.protocol, capabilities, OPEN_TIMEOUT)
    except BaseException:
        await wire.close()
        raise
    if not session.info.is_modern:
        wire.listen()
    return session


async def _talk_over_sse(
    mount: MountConfig, client: HttpClient, capabilities: Mapping[str, Any], on_notice: OnNotice
) -> UpstreamSession:
    peer = UpstreamPeer(on_notice)
    peer.wire = wire = SseWire(mount.url, client, peer)
    try:
        await wire.open()
        return await shake_hands(peer, "legacy", capabilities, OPEN_TIMEOUT)
    except BaseException:
        await wire.close()
        raise
