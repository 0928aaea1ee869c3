"""Find the era of a mounted server, and open a conversation in it.

Only `server/discover` tells the era: a server of the sessions era refuses it, and may answer lists all the same.
"""

import asyncio
import contextlib
from collections.abc import Mapping
from typing import Any

import msgspec

from toolgate.server.features.mounts.config.mount_config import Era
from toolgate.server.features.mounts.upstream import messages
from toolgate.server.features.mounts.upstream.envelope import IDENTITY, create_envelope, list_headers
from toolgate.server.features.mounts.upstream.errors import LOOP, MountError, UpstreamRefusedError
from toolgate.server.features.mounts.upstream.messages import MAX_SHOWN, Members
from toolgate.server.features.mounts.upstream.peer import UpstreamPeer
from toolgate.server.features.mounts.upstream.session import UpstreamInfo, UpstreamSession
from toolgate.server.protocol.revisions import NEWEST_WITH_SESSION, STATELESS, WITH_SESSION

NEWEST = next(iter(STATELESS))
DISCOVER = "server/discover"
DISCOVER_TIMEOUT = 10.0  # seconds; few servers ignore what they don't know
MAX_INSTRUCTIONS = 32_768  # characters that are kept


async def shake_hands(
    peer: UpstreamPeer, protocol: Era, capabilities: Mapping[str, Any], timeout: float
) -> UpstreamSession:
    """Return a conversation that is open. `timeout` is in seconds. Raises MountError."""
    try:
        if protocol == "legacy":
            info = await _initialize(peer, capabilities, timeout)
        elif protocol == "modern":
            info = await _discover(peer, capabilities, timeout) or _refuse()
        else:
            info = await _find_era(peer, capabilities, timeout)
    except MountError as error:
        if error.code == "SESSION_EXPIRED" and peer.failure is not None:  # none has begun: it failed before a request
            raise peer.failure.create_error() from None
        raise
    peer.revision = info.revision
    return UpstreamSession(peer, info, capabilities)


async def _find_era(peer: UpstreamPeer, capabilities: Mapping[str, Any], timeout: float) -> UpstreamInfo:
    """Ask for the stateless era first. A server that says nothing may be one that ignores what it does not know, or one
    that is slow to start: then it is asked for a session as well, and what it accepts first counts."""
    discovering = asyncio.ensure_future(_discover(peer, capabilities, timeout))
    initializing: asyncio.Future[UpstreamInfo] | None = None
    try:
        await asyncio.wait([discovering], timeout=DISCOVER_TIMEOUT)
        if discovering.done() and (info := discovering.result()) is not None:
            return info
        initializing = asyncio.ensure_future(_initialize(peer, capabilities, timeout))
        if not discovering.done():
            await asyncio.wait([discovering, initializing], return_when=asyncio.FIRST_COMPLETED)
            is_refused = initializing.done() and initializing.exception() is not None
            if is_refused or discovering.done():
                info = await discovering
                if info is not None:
                    return info
        return await initializing
    finally:
        for each in (discovering, initializing):
            if each is not None and not each.done():
                each.cancel()
                with contextlib.suppress(asyncio.CancelledError, MountError):
                    await each


def _refuse() -> UpstreamInfo:
    raise MountError("INITIALIZE_REFUSED", f"it does not speak {NEWEST}")


async def _discover(peer: UpstreamPeer, capabilities: Mapping[str, Any], timeout: float) -> UpstreamInfo | None:
    """Return what a server of the stateless era says, or None for one of the sessions era."""
    params = {"_meta": create_envelope(NEWEST, capabilities)}
    peer.revision = NEWEST
    try:
        told = await peer.request(DISCOVER, params, timeout, list_headers(DISCOVER, params))
    except UpstreamRefusedError as error:
        if _is_loop(error):
            raise MountError(LOOP, str(error)) from None
        return None
    except TimeoutError:
        return None
    except MountError as error:
        if error.code not in ("HTTP_STATUS", "NOT_MCP"):
            raise
        return None
    versions = messages.read_value(told.get("supportedVersions", msgspec.UNSET))
    if not isinstance(versions, list) or NEWEST not in versions:
        return None
    return _read_info(told, NEWEST, is_modern=True)


async def _initialize(peer: UpstreamPeer, capabilities: Mapping[str, Any], timeout: float) -> UpstreamInfo:
    peer.revision = ""  # no header before the answer
    params = {
        "protocolVersion": NEWEST_WITH_SESSION.name,
        "capabilities": capabilities,
        "clientInfo": IDENTITY,
    }
    try:
        told = await peer.request("initialize", params, timeout)
    except UpstreamRefusedError as error:
        if _is_loop(error):
            raise MountError(LOOP, str(error)) from None
        raise MountError("INITIALIZE_REFUSED", f"it refused to begin: {error}") from None
    except TimeoutError:
        raise MountError("INITIALIZE_TIMEOUT", f"no answer to initialize within {timeout:g} s") from None
    revision = messages.read_value(told.get("protocolVersion", msgspec.UNSET))
    if revision not in WITH_SESSION:
        raise MountError("INITIALIZE_REFUSED", f"it speaks {str(revision)[:MAX_SHOWN]!r}, which is not known here")
    peer.revision = revision
    await peer.notify("notifications/initialized")
    return _read_info(told, revision, is_modern=False)


def _is_loop(error: UpstreamRefusedError) -> bool:
    data = error.refusal.data
    return isinstance(data, dict) and data.get("code") == LOOP


def _read_info(told: Members, revision: str, *, is_modern: bool) -> UpstreamInfo:
    instructions = messages.read_value(told.get("instructions", msgspec.UNSET))
    return UpstreamInfo(
        revision=revision,
        is_modern=is_modern,
        capabilities=messages.read_object(told.get("capabilities", msgspec.UNSET)),
        instructions=instructions[:MAX_INSTRUCTIONS] if isinstance(instructions, str) else "",
    )
