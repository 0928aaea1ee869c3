"""Give each request of a person to a mounted server their own token, refreshed before it ends: once for all who wait.

A refresh is marked in the state before it is sent, since a server that rotates refresh tokens takes each once. What
became of one whose answer never came nobody knows, so the person signs in again, unless the operator says that the
server takes a second try (`refresh_retry`).
"""

import asyncio
import contextlib
from collections.abc import Callable

import msgspec

from toolgate.server.cli.mcp_client.challenge import parse_challenge
from toolgate.server.cli.sign_in.requests import OAuthRequests
from toolgate.server.features.mounts.config.mount_config import MountConfig
from toolgate.server.features.mounts.sign_in import requests
from toolgate.server.features.mounts.sign_in.requests import NotSentError, RefusedError
from toolgate.server.features.mounts.sign_in.store import ConnectionStore, MountConnection, SignInFault
from toolgate.server.features.mounts.upstream.errors import MountError
from toolgate.server.state.store import StateError

ANSWER_WITHIN = 30.0  # seconds from the mark of a refresh to the storing of its answer
LOOK = 0.2  # seconds between two looks for the answer to another server's refresh
MAX_KEPT = 10_000  # tokens in memory
KEPT_FOR = 15.0  # seconds until the state is asked again: a person may end the connection at another server
UNKNOWN = "what became of its last refresh is not known"


class KeptToken(msgspec.Struct, frozen=True):
    """A token that can be used until then, by the clock of the state."""

    token: str
    until: float


class MountTokens:
    """The tokens of all people at one mount. `find_link()` returns where a person connects."""

    def __init__(self, config: MountConfig, server: str, store: ConnectionStore, find_link: Callable[[], str]) -> None:
        self._config = config
        self._server = server
        self._store = store
        self._find_link = find_link
        self._kept: dict[str, KeptToken] = {}
        self._work: dict[str, asyncio.Task[str]] = {}  # by principal
        self._requests = OAuthRequests(config.url)

    def of(self, principal: str) -> "PersonTokens":
        return PersonTokens(self, principal)

    async def find(self, principal: str, rejected: str = "") -> str:
        """Return the token, another than the one that was rejected; "" for a person who has not signed in. Raises
        MountError."""
        kept = self._kept.get(principal)
        if kept is not None and kept.token != rejected and self._store.now() < kept.until:
            return kept.token
        while True:
            running = self._work.get(principal)
            if running is None or running.done():
                work = self._read_or_refresh(principal, rejected)
                running = self._work[principal] = asyncio.get_running_loop().create_task(work)
                running.add_done_callback(lambda task: self._forget_work(principal, task))
            token = await asyncio.shield(running)  # a call that ends must not end what others wait for
            if not token or token != rejected:
                return token

    def forget(self, principal: str) -> None:
        """Use no token in memory: the person has connected again, or ended it."""
        self._kept.pop(principal, None)

    def create_refusal(self, why: str = "") -> MountError:
        """Return the error of a call that needs a sign-in."""
        link = self._find_link()
        if not link:
            return MountError("SIGN_IN_REQUIRED", "it wants a sign-in, which needs this server's own page: serve HTTP")
        again = f" again ({why})" if why else ""
        return MountError("SIGN_IN_REQUIRED", f"connect it{again} at {link}, then try once more")

    async def note_need(self, principal: str, challenge: str) -> MountError:
        """Return the error of a call for which the person's token has too few scopes."""
        wanted = parse_challenge(challenge).get("scope", "")
        with contextlib.suppress(StateError):
            held = await self._store.find(principal, self._config.name)
            if held is not None and not held.ended:
                await self._store.end(held, f"it wants more rights: {wanted[:200]}")
        self.forget(principal)
        return self.create_refusal(f"it wants more rights: {wanted[:200]}")

    def _forget_work(self, principal: str, task: "asyncio.Task[str]") -> None:
        if self._work.get(principal) is task:
            del self._work[principal]
        if not task.cancelled():
            task.exception()  # retrieved: whoever waited may be gone

    async def _read_or_refresh(self, principal: str, rejected: str) -> str:
        try:
            while True:
                held = await self._store.find(principal, self._config.name)
                if held is None or held.server != self._server:
                    self.forget(principal)
                    return ""
                if held.ended or held.signed_in is None:
                    self.forget(principal)
                    raise self.create_refusal(held.ended)
                token = held.signed_in.access_token
                if token != rejected and (held.expires_at is None or self._store.now() < held.expires_at):
                    return self._keep(held)
                if not held.signed_in.refresh_token:
                    await self._store.end(held, "its token has ended, and can't be refreshed")
                    continue
                if held.refreshing_since is not None:
                    await self._wait_for_other(held)
                elif await self._store.begin_refresh(held):
                    await self._refresh(held)
        except StateError as error:
            raise MountError("SIGN_IN_REQUIRED", f"its tokens can't be read: {error.text}") from None

    async def _wait_for_other(self, held: MountConnection) -> None:
        """Wait for the answer to a refresh that was sent by whoever. One that never came ends the connection."""
        assert held.refreshing_since is not None
        if self._store.now() < held.refreshing_since + ANSWER_WITHIN:
            await asyncio.sleep(LOOK)
        elif self._config.refresh_retry:
            await self._store.undo_refresh(held)
        else:
            await self._store.end(held, UNKNOWN)

    async def _refresh(self, held: MountConnection) -> None:
        """Refresh, and store what comes of it. Raises MountError where it can't be tried now."""
        assert held.signed_in is not None
        tries = 2 if self._config.refresh_retry else 1
        for left in reversed(range(tries)):
            try:
                signed_in, lasts = await requests.refresh(self._requests, held.signed_in)
            except NotSentError as error:
                await self._store.undo_refresh(held)
                raise MountError("CONNECT_FAILED", f"its token can't be refreshed now: {error.text}") from None
            except RefusedError as error:
                await self._store.end(held, error.text)
                return
            except SignInFault as error:
                if not left:
                    await self._store.end(held, f"{UNKNOWN}: {error.text}")
                    return
            else:
                await self._store.keep_refreshed(held, signed_in, None if lasts is None else self._store.now() + lasts)
                return

    def _keep(self, held: MountConnection) -> str:
        assert held.signed_in is not None
        if len(self._kept) >= MAX_KEPT:
            del self._kept[next(iter(self._kept))]
        until = min(self._store.now() + KEPT_FOR, held.expires_at or float("inf"))
        self._kept[held.principal] = KeptToken(held.signed_in.access_token, until)
        return held.signed_in.access_token


class PersonTokens:
    """What carries one person's token with requests to one mount."""

    def __init__(self, tokens: MountTokens, principal: str) -> None:
        self._tokens = tokens
        self._principal = principal

    async def find(self) -> str:
        """Return the token, or "" for none. Raises MountError."""
        return await self._tokens.find(self._principal)

    async def renew(self, rejected: str) -> str:
        """Return another token than the one that was rejected. Raises MountError."""
        found = await self._tokens.find(self._principal, rejected) if rejected else ""
        if not found:
            raise self._tokens.create_refusal()
        return found

    async def refuse_scope(self, challenge: str) -> MountError:
        """Return the error of a request whose token has too few scopes."""
        return await self._tokens.note_need(self._principal, challenge)
