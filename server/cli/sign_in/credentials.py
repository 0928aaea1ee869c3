"""Keep the tokens of sign-ins, sealed and private, and renew them: one process at a time uses a refresh token.

FOLDER/NAME.sealed    a sign-in; NAME is a digest of the server's URL
FOLDER/NAME.lock      held while its token is renewed
FOLDER/key            seals all of them
"""

import asyncio
import fcntl
import hashlib
import os
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import msgspec

from toolgate.server.base.errors import UsageError
from toolgate.server.cli.mcp_client.http import SignInRequiredError
from toolgate.server.cli.sign_in.requests import LoginError, OAuthAnswer, OAuthRequests, normalize_url
from toolgate.server.config.load import Config
from toolgate.server.state.keys.file import KeyFile
from toolgate.server.state.keys.sealed_state import Sealer, SealError
from toolgate.tools.api.regular_file import open_regular

MARGIN = 60.0  # seconds before its expiry at which a token is renewed
LOCK_TIMEOUT = 60.0  # seconds for another process to renew it
LOCK_PAUSE = 0.05  # seconds between two tries of the lock
DEFAULT_LIFETIME = 300.0  # seconds, if the server does not say
MAX_LIFETIME = 365 * 86_400.0  # seconds
MAX_TOKEN = 16 * 1024  # characters
MAX_SCOPE = 4_096  # characters
MAX_SEALED = 128 * 1024  # bytes of a file: two such tokens, escaped and in base64, and some more
PURPOSE = "sign-in"


class SignIn(msgspec.Struct, frozen=True):
    """One sign-in: the server's endpoints, our client there, and the tokens. Times are seconds since 1970.
    `redirect_port` is the port that our client is registered with, 0 for any."""

    url: str
    issuer: str
    token_endpoint: str
    revocation_endpoint: str
    client_id: str
    access_token: str
    expires_at: float
    refresh_token: str = ""
    scope: str = ""
    redirect_port: int = 0


class CredentialStore:
    """The sign-ins in `folder`."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._sealer = Sealer(KeyFile(folder / "key"), None)

    def read(self, url: str, *, is_ending: bool = False) -> SignIn | None:
        """Return the sign-in to the server at `url`, or None. `is_ending` reads it to revoke its tokens, which others
        may have read. Raises UsageError for any other file that others can read, and for one that can't be opened."""
        file = self._file(url)
        try:
            with open(open_regular(file, os.O_RDONLY), "rb") as opened:
                status = os.fstat(opened.fileno())
                if status.st_uid != os.geteuid() or (status.st_mode & 0o077 and not is_ending):
                    raise UsageError(f"{file} can be read by others: toolgate logout {url}, then sign in again")
                sealed = opened.read(MAX_SEALED).decode("ascii", "replace")
        except FileNotFoundError:
            return None
        try:
            return msgspec.convert(self._sealer.unseal(sealed, PURPOSE, url), SignIn)
        except (SealError, msgspec.ValidationError):
            raise UsageError(f"{file} can't be opened: its key is another: toolgate login {url}") from None

    def write(self, sign_in: SignIn) -> None:
        """Store a sign-in in one step: a reader sees the old one or the new one. Raises LoginError if it is too large,
        OSError."""
        self._make_folder()
        file = self._file(sign_in.url)
        draft = file.with_name(f".{file.name}.{os.getpid()}")
        sealed = self._sealer.seal(msgspec.to_builtins(sign_in), PURPOSE, sign_in.url).encode()
        if len(sealed) > MAX_SEALED:
            raise LoginError(f"{sign_in.issuer} sends more than a sign-in needs: it is not kept")
        draft.unlink(missing_ok=True)
        try:
            with open(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600), "wb") as opened:
                opened.write(sealed)
                opened.flush()
                os.fsync(opened.fileno())
            draft.rename(file)
        finally:
            draft.unlink(missing_ok=True)  # a full disk must leave no tokens behind

    def has(self, url: str) -> bool:
        """Return whether there is a file for the server, also one that can't be read."""
        return os.path.lexists(self._file(url))

    def remove(self, url: str) -> None:
        self._file(url).unlink(missing_ok=True)  # the lock stays: another process may wait for it

    @asynccontextmanager
    async def hold_lock(self, url: str) -> AsyncGenerator[None]:
        """Keep other processes from renewing this sign-in. Raises LoginError after a minute."""
        self._make_folder()
        place = self._file(url).with_suffix(".lock")
        descriptor = os.open(place, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            end = time.monotonic() + LOCK_TIMEOUT
            while True:
                with suppress(BlockingIOError):
                    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                if time.monotonic() > end:
                    raise LoginError(f"{place}: another process has renewed this sign-in for a minute: try again")
                await asyncio.sleep(LOCK_PAUSE)
            yield
        finally:
            os.close(descriptor)

    def _make_folder(self) -> None:
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)

    def _file(self, url: str) -> Path:
        return self._folder / f"{hashlib.sha256(url.encode()).hexdigest()[:32]}.sealed"


class CallToken(msgspec.Struct, frozen=True):
    """An access token for `url`: TOOLGATE_TOKEN, or of a sign-in. `text` is "" without any."""

    url: str
    text: str = ""
    is_stored: bool = False


async def find_token(config: Config, url: str) -> CallToken:
    """Return the token for the server at `url`, renewed if it ends soon. TOOLGATE_TOKEN beats a sign-in. Raises
    SignInRequiredError when it can't be renewed."""
    if config.access_token:
        return CallToken(url, config.access_token)
    url = normalize_url(url)
    store = CredentialStore(config.sign_in_folder)
    stored = store.read(url)
    if stored is None:
        return CallToken(url)
    if time.time() > stored.expires_at - MARGIN:
        stored = await _renew(store, stored)
    return CallToken(url, stored.access_token, is_stored=True)


async def renew_token(config: Config, refused: CallToken) -> CallToken:
    """Return another token after the server has refused this one. Raises SignInRequiredError."""
    store = CredentialStore(config.sign_in_folder)
    stored = store.read(refused.url)
    if stored is None:
        raise _sign_in_again(refused.url, "the sign-in was removed")
    if stored.access_token == refused.text:
        stored = await _renew(store, stored)
    return CallToken(refused.url, stored.access_token, is_stored=True)


async def _renew(store: CredentialStore, old: SignIn) -> SignIn:
    """Return a sign-in with a fresh token: another process may have renewed it meanwhile."""
    async with store.hold_lock(old.url):
        stored = store.read(old.url)
        if stored is None:
            raise _sign_in_again(old.url, "the sign-in was removed")
        if stored.access_token != old.access_token:
            return stored
        if not stored.refresh_token:
            raise _sign_in_again(old.url, "the access token has expired")
        fields = {"grant_type": "refresh_token", "refresh_token": stored.refresh_token}
        fields |= {"client_id": stored.client_id, "resource": stored.url}
        answer = await OAuthRequests(stored.url).post_form(stored.token_endpoint, fields)
        if answer.json.get("error") in ("invalid_grant", "invalid_client", "unauthorized_client"):
            raise _sign_in_again(old.url, "access has ended or was revoked")
        renewed = apply_tokens(stored, answer)
        store.write(renewed)
        return renewed


def apply_tokens(sign_in: SignIn, answer: OAuthAnswer) -> SignIn:
    """Return the sign-in with the tokens of an answer (RFC 6749 section 5.1). Raises LoginError."""
    tokens = answer.json
    if answer.status != 200:
        raise LoginError(f"{sign_in.token_endpoint} refuses: {answer.error}")
    kind, lifetime = tokens.get("token_type"), tokens.get("expires_in", DEFAULT_LIFETIME)
    scope = tokens.get("scope")
    if not isinstance(kind, str) or kind.lower() != "bearer":
        raise LoginError(f"{sign_in.token_endpoint} gives no bearer token")
    if isinstance(lifetime, bool) or not isinstance(lifetime, (int, float)) or not 0 < lifetime <= MAX_LIFETIME:
        lifetime = DEFAULT_LIFETIME
    return msgspec.structs.replace(
        sign_in,
        access_token=_read_token(tokens, "access_token", sign_in),
        refresh_token=_read_token(tokens, "refresh_token", sign_in)
        if "refresh_token" in tokens
        else sign_in.refresh_token,
        expires_at=time.time() + lifetime,
        scope=scope if isinstance(scope, str) and len(scope) <= MAX_SCOPE else sign_in.scope,
    )


def _read_token(tokens: dict[str, Any], name: str, sign_in: SignIn) -> str:
    token = tokens.get(name)
    is_token = isinstance(token, str) and token.isascii() and token.isprintable() and " " not in token
    if not isinstance(token, str) or not is_token or not 0 < len(token) <= MAX_TOKEN:
        raise LoginError(f"{sign_in.token_endpoint} gives no usable {name.replace('_', ' ')}")
    return token


def _sign_in_again(url: str, why: str) -> SignInRequiredError:
    return SignInRequiredError(f"{url}: {why}; sign in again: toolgate login {url}")
