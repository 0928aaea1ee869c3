"""Give each request of a person to a mounted server their own token, refreshed before it ends: once for all who wait.

A refresh is marked in the state before it is sent, since a server that rotates refresh tokens takes each once. What
became of one whose answer never came nobody knows, so the person signs in again, unless the operator says that the
server takes a second try (`refresh_retry`).
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable

import msgspec
from msgspec.structs import replace

from toolgate.server.base.errors import StateError
from toolgate.server.base.text import to_line
from toolgate.server.cli.mcp_client.challenge import parse_challenge
from toolgate.server.cli.sign_in.discovery import MAX_SCOPES, read_scopes
from toolgate.server.cli.sign_in.requests import OAuthRequests
from toolgate.server.features.mounts.config.mount_config import MountConfig
from toolgate.server.features.mounts.kept_secrets.resolver import ResolvedMount
from toolgate.server.features.mounts.sign_in import requests
from toolgate.server.features.mounts.sign_in.flow import FindSecret, fill_in_secret
from toolgate.server.features.mounts.sign_in.rejections import REJECTED_FOR, Rejections
from toolgate.server.features.mounts.sign_in.requests import NotSentError, RefusedError
from toolgate.server.features.mounts.sign_in.store import ConnectionStore, MountConnection, SignedIn, SignInFault
from toolgate.server.features.mounts.upstream.errors import MountError

ANSWER_WITHIN = 50.0  # seconds from the mark of a refresh to the storing of its answer
CLOSE_WITHIN = 10.0  # seconds that the end of a server waits for answers, as for revocations
MAX_WORDS = 200  # characters of the scopes that a call lacks, in its error
LOOK = 0.2  # seconds between two looks for the answer to another server's refresh
MAX_KEPT = 10_000  # tokens in memory
KEPT_FOR = 15.0  # seconds until the state is asked again: a person may end the connection at another server
ANOTHER_CLIENT = "it was made with another client than the client_id of its mount"
NO_PAGE = "it wants a sign-in, for which there is no page over stdio or with an outside issuer: use HTTP, --auth oauth"
REJECTED = "it rejects the token that it gave"
UNKNOWN = "what became of its last refresh is not known"


Refresh = Callable[[SignedIn, str], Awaitable[tuple[SignedIn, float | None]]]  # and in how many seconds it is due again
Revoke = Callable[[SignedIn], Awaitable[bool]]  # whether the server has


class KeptToken(msgspec.Struct, frozen=True):
    """A token that can be used until then, by the clock of the state."""

    token: str
    until: float


class MountTokens:
    """The tokens of all people at one mount. `find_link()` returns where a person connects; `refresh(signed_in,
    principal)` has new tokens sent, and `revoke(signed_in)` has them revoked. `note_newer(principal)` is called for a
    later connection that another server has stored, of which no word came. `rejected_for`: seconds after which a server
    that rejects each new token ends a connection."""

    def __init__(
        self,
        config: MountConfig,
        server: str,
        store: ConnectionStore,
        find_link: Callable[[], str],
        find_secret: FindSecret,
        refresh: Refresh | None = None,
        revoke: Revoke | None = None,
        note_newer: Callable[[str], None] = lambda _: None,
        rejected_for: float = REJECTED_FOR,
    ) -> None:
        self._config = config
        self._send_revocation = revoke or (lambda signed_in: requests.revoke(self._requests, signed_in))
        self._send_refresh = refresh or (lambda signed_in, _: requests.refresh(self._requests, signed_in))
        self._find_secret = find_secret
        self._server = server
        self._store = store
        self._find_link = find_link
        self._note_newer = note_newer
        self._kept: dict[str, KeptToken] = {}
        self._made: dict[str, float] = {}  # when the connections that were read last were made, by principal
        self._work: dict[str, asyncio.Task[str]] = {}  # by principal
        self._requests = OAuthRequests(config.url)
        self._rejections = Rejections(store.now, rejected_for)

    def for_mount(self, mount: ResolvedMount) -> "PersonTokens":
        """Return the tokens of the mount's owner, who is a person where people sign in."""
        return PersonTokens(self, mount.owner)

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

    def list_recent(self, principal: str) -> list[str]:
        """Return the token that a person's requests carry, which is not repeated to anybody."""
        kept = self._kept.get(principal)
        return [kept.token] if kept is not None else []

    def forget(self, principal: str) -> None:
        """Use no token in memory: the person has connected again, or ended it."""
        self._kept.pop(principal, None)
        self._rejections.forget(principal)
        self._made.pop(principal, None)

    def forget_all(self) -> None:
        """Have the state read again for each person's next request."""
        self._kept.clear()

    def create_refusal(self, why: str = "") -> MountError:
        """Return the error of a call that needs a sign-in."""
        link = self._find_link()
        if not link:
            return MountError("SIGN_IN_REQUIRED", NO_PAGE)
        again = f" again ({why})" if why else ""
        return MountError("SIGN_IN_REQUIRED", f"connect it{again} at {link}, then try once more")

    async def note_need(self, principal: str, token: str, challenge: str) -> MountError:
        """Return the error of a call for which a token has too few scopes. The next sign-in asks for them, too."""
        wanted = read_scopes(parse_challenge(challenge).get("scope", ""))
        with contextlib.suppress(StateError):
            held = await self._store.find(principal, self._config.name)
            if held is not None and held.signed_in is not None and held.signed_in.access_token == token:
                union = dict.fromkeys((*wanted, *held.signed_in.wanted.split()))
                await self._store.note_wanted(held, " ".join(list(union)[:MAX_SCOPES]))
        return self.create_refusal(f"it wants more rights: {to_line(' '.join(wanted), MAX_WORDS)}")

    async def note_rejected(self, principal: str, token: str) -> MountError:
        """Return the error of a call whose token is rejected, though it is new. The second one ends the connection, if
        it comes a while after the first."""
        if not self._rejections.note(principal, token):
            return self._create_rejection()
        with contextlib.suppress(StateError):
            held = await self._store.find(principal, self._config.name)
            if held is not None and held.signed_in is not None and held.signed_in.access_token == token:
                await self._store.end(held, REJECTED)
        self._kept.pop(principal, None)
        self._rejections.forget(principal)
        return self.create_refusal(REJECTED)

    def note_accepted(self, principal: str) -> None:
        """The server has taken a token of this person."""
        self._rejections.forget(principal)

    def _create_rejection(self) -> MountError:
        return MountError("CONNECT_FAILED", f"{REJECTED}: try again in {self._rejections.lasts:g} s")

    async def close(self, within: float = CLOSE_WITHIN) -> None:
        """Let refreshes that are sent store their answers, for so many seconds. What becomes of others nobody knows."""
        if self._work:
            await asyncio.wait(list(self._work.values()), timeout=within)

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
                    self._kept.pop(principal, None)
                    return ""
                self._note_made(held)
                if held.ended or held.signed_in is None:
                    self._kept.pop(principal, None)
                    raise self.create_refusal(held.ended)
                token = held.signed_in.access_token
                is_over = held.expires_at is not None and self._store.now() >= held.expires_at
                if token != rejected and not is_over:
                    return self._keep(held, token, held.expires_at)
                if token == rejected and self._rejections.is_recent(principal, token):
                    raise self._create_rejection()
                if not held.signed_in.refresh_token and not is_over:
                    raise await self.note_rejected(principal, token)
                if not held.signed_in.refresh_token:
                    await self._store.end(held, "its token has ended, and can't be refreshed")
                elif held.refreshing_since is not None:
                    await self._wait_for_other(held)
                elif await self._store.begin_refresh(held):
                    return await self._refresh(held, rejected)
        except StateError as error:
            raise MountError("SIGN_IN_REQUIRED", f"its tokens can't be read: {error.text}") from None

    def _note_made(self, held: MountConnection) -> None:
        """Have a connection noticed that is newer than the one that was read last."""
        if self._made.pop(held.principal, held.made_at) < held.made_at:
            self._note_newer(held.principal)
        if len(self._made) >= MAX_KEPT:
            del self._made[next(iter(self._made))]
        self._made[held.principal] = held.made_at

    async def _wait_for_other(self, held: MountConnection) -> None:
        """Wait for the answer to a refresh that was sent by whoever. One that never came ends the connection."""
        assert held.refreshing_since is not None
        if self._store.now() < held.refreshing_since + ANSWER_WITHIN:
            await asyncio.sleep(LOOK)
        elif self._config.refresh_retry:
            await self._store.undo_refresh(held)
        else:
            await self._store.end(held, UNKNOWN)

    async def _refresh(self, held: MountConnection, rejected: str) -> str:
        """Refresh, store what comes of it, and return the token. Raises MountError."""
        assert held.signed_in is not None
        try:
            client = await fill_in_secret(held.signed_in.client, self._config, self._find_secret)
        except SignInFault as error:  # its operator's fault, and nothing was sent
            return await self._put_off(held, rejected, error)
        asked = replace(held.signed_in, client=client)
        for left in reversed(range(2 if self._config.refresh_retry else 1)):
            try:
                signed_in, lasts = await self._send_refresh(asked, held.principal)
            except NotSentError as error:
                return await self._put_off(held, rejected, error)
            except RefusedError as error:
                if error.is_client and client.id == self._config.client_id:  # its operator's fault, and no person's
                    return await self._put_off(held, rejected, error)
                why = ANOTHER_CLIENT if error.is_client and self._config.client_id else error.text
                await self._store.end(held, why)
                raise self.create_refusal(why) from None
            except SignInFault as error:
                if not left:
                    await self._store.end(held, UNKNOWN)
                    raise self.create_refusal(f"{UNKNOWN}: {error.text}") from None
            else:
                return await self._take(held, signed_in, lasts, rejected)
        raise AssertionError("each try has an end")

    async def _take(self, held: MountConnection, signed_in: SignedIn, lasts: float | None, rejected: str) -> str:
        """Store the answer to a refresh, without the secret of the operator's client, and return its token."""
        assert held.signed_in is not None
        kept = replace(signed_in, client=held.signed_in.client)
        token, expires_at = signed_in.access_token, None if lasts is None else self._store.now() + lasts
        if not await self._store.keep_refreshed(held, kept, expires_at):
            await self._send_revocation(signed_in)  # the person has ended it
            raise self.create_refusal()
        if token == rejected:
            raise await self.note_rejected(held.principal, token)
        return self._keep(held, token, expires_at)

    async def _put_off(self, held: MountConnection, rejected: str, error: SignInFault) -> str:
        """Return the token that is there, as long as its server takes it: it is refreshed before its end. Raises
        MountError."""
        assert held.signed_in is not None
        await self._store.undo_refresh(held)
        if held.signed_in.access_token != rejected:
            return self._keep(held, held.signed_in.access_token, None)
        raise MountError("CONNECT_FAILED", f"its token can't be refreshed now: {error.text}")

    def _keep(self, held: MountConnection, token: str, expires_at: float | None) -> str:
        if len(self._kept) >= MAX_KEPT:
            del self._kept[next(iter(self._kept))]
        until = min(self._store.now() + KEPT_FOR, expires_at or float("inf"))
        self._kept[held.principal] = KeptToken(token, until)
        return token


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

    async def refuse_scope(self, token: str, challenge: str) -> MountError:
        """Return the error of a request whose token has too few scopes."""
        return await self._tokens.note_need(self._principal, token, challenge)

    async def refuse_token(self, token: str) -> MountError:
        """Return the error of a request whose token is rejected, though it is another one."""
        return await self._tokens.note_rejected(self._principal, token)

    def note_accepted(self) -> None:
        """The server has taken the token of a request."""
        self._tokens.note_accepted(self._principal)
