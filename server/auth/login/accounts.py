"""Keep the accounts of the built-in login (names, passwords, limits on guessing), and create the first by a code."""

import asyncio
import base64
import contextlib
import hashlib
import hmac
import logging
import secrets
import time
import unicodedata
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from toolgate.server.auth.login.passwords import TYPED, WeakPasswordError, check_password, compose_password
from toolgate.server.auth.login.throttle import Backoff, GuessLimiter, Throttle, block_backoffs
from toolgate.server.base.bus.bus import BusUnreachableError
from toolgate.server.base.bus.memory_keys import MAX_COUNTERS, MemoryKeys
from toolgate.server.base.errors import StateError
from toolgate.server.base.principals.principal import derive_subject
from toolgate.server.state.rows import grants as grant_rows
from toolgate.server.state.rows import people as people_rows
from toolgate.server.state.rows.people import BUILT_IN

if TYPE_CHECKING:
    from toolgate.server.base.bus.bus import Counters, Keys
    from toolgate.server.state.store import Connection, Store

MAX_NAME = 64  # characters
OWN_NAME = "toolgate"  # of every server: guessers try it
COST: Mapping[str, Any] = {}  # parameters of a hash, if not argon2-cffi's defaults (RFC 9106's low-memory choice)
AT_ONCE = 2  # concurrent hashes: each takes 64 MiB and one core

# A name's wait is short, because guessers delay its owner too; an address may wait long.
NAME_BACKOFF = Backoff(free=5, longest=60)
ADDRESS_BACKOFF = Backoff(free=10, longest=900)
TOTAL_BACKOFF = Backoff(free=100, longest=5, forget=60)

PAIRING = "pairing code"  # key
PAIRING_LIFETIME = 600.0  # seconds
PAIRING_BYTES = 16  # 128 bits, unguessable: 26 letters and digits
PAIRING_ADDRESS_BACKOFF = Backoff(free=5, longest=60)
PAIRING_TOTAL_BACKOFF = Backoff(free=100, longest=2)  # short: a guesser must not lock the operator out

NO_ACCOUNT = "there is no account yet: open %s and create the first with the pairing code %s (within %d minutes)"

log = logging.getLogger("toolgate.auth")


class Person(msgspec.Struct, frozen=True):
    """A person at one issuer. `subject` is unique within `issuer` and never reused; `name` is for display. `email` is
    verified by the issuer, or None."""

    issuer: str
    subject: str
    name: str
    email: str | None = None

    @property
    def has_account(self) -> bool:
        """Return whether the person signs in with an account of this server."""
        return self.issuer == BUILT_IN


def save_person(connection: "Connection", person: Person, now: float) -> str:
    """Store the person who signs in, and return their subject."""
    subject = derive_subject(person.issuer, person.subject)
    identity = {"issuer": person.issuer, "known_as": person.subject, "name": person.name, "email": person.email}
    grant_rows.save_person(connection, subject, **identity, seen_at=now)
    return subject


class SignInError(Exception):
    """A sign-in or an account is refused; the text tells the person why."""


class Accounts:
    """The accounts in the state database. Guesses are counted by `counters`. `server` are the server's names, of which
    no password may be made."""

    def __init__(
        self,
        store: "Store",
        counters: "Counters | None" = None,
        now: Callable[[], float] | None = None,
        server: str = "",
    ) -> None:
        self._store = store
        self._server = server
        counters = counters if counters is not None else MemoryKeys(most=MAX_COUNTERS)
        self._guesses = GuessLimiter(counters, NAME_BACKOFF, ADDRESS_BACKOFF, TOTAL_BACKOFF)
        self._now = now or store.now
        self._hashing = asyncio.Semaphore(AT_ONCE)
        self._dummy_hash = ""  # matches no password; for unknown names

    async def verify_password(self, name: str, password: str, address: str, device: str = "") -> Person | None:
        """Return the person, or None for a wrong name or password, after the same time for both. `address` is "" if
        unknown; `device` is the browser's device cookie. Raises ThrottledError."""
        normal = normalize_name_or_empty(name)
        row = await self._store.read(lambda connection: people_rows.find_account(connection, normal))
        own_device = device if row is not None and _is_of(device, row.password) else ""
        attempt = await self._guesses.take(normal, address, own_device)
        if not self._dummy_hash:
            self._dummy_hash = await self._hash_password(secrets.token_urlsafe())
        right = await self._matches(self._dummy_hash if row is None else row.password, password)
        if row is None or not right:
            return None
        await self._guesses.forgive(attempt)
        return Person(BUILT_IN, row.subject, row.name)

    async def issue_device_cookie(self, person: Person) -> str:
        """Return a device cookie for a browser that has signed in to this account, or "" if the account is gone. With
        it, other people's guesses don't lock the owner out. A new password ends it. (OWASP: Blocking Brute Force
        Attacks, device cookies.)"""
        row = await self._store.read(lambda connection: people_rows.find_account(connection, person.name))
        if row is None or (person.issuer, person.subject) != (BUILT_IN, row.subject):
            return ""
        nonce = secrets.token_bytes(16)
        return base64.urlsafe_b64encode(nonce + _mark(nonce, row.password)).decode().rstrip("=")

    async def is_empty(self) -> bool:
        """Return whether there is no account."""
        return not await self._store.read(people_rows.has_accounts)

    async def add(self, name: str, password: str, *, first: bool = False) -> Person:
        """Create an account; with `first`, only if there is none. Raises SignInError."""
        normal = normalize_name(name)
        row = {
            "name": normal,
            "subject": secrets.token_hex(16),  # not the name, which another person may get later
            "password": await self._hash_password(self._check_password(password, normal)),
            "made_at": self._now(),
        }

        def put(connection: "Connection") -> None:
            if first and people_rows.has_accounts(connection):
                raise SignInError("an account already exists")
            if people_rows.find_account(connection, normal) is not None:
                raise SignInError(f"the account {normal!r} already exists")
            people_rows.add_account(connection, **row)

        await self._store.transact(put, alone="accounts")
        return Person(BUILT_IN, str(row["subject"]), normal)

    async def list_accounts(self) -> list[tuple[str, float]]:
        """Return each name, and when its account was created."""
        return [(row.name, row.made_at) for row in await self._store.read(people_rows.list_accounts)]

    async def has_account(self, name: str) -> bool:
        """Return whether there is an account of that name."""
        normal = normalize_name_or_empty(name)
        return await self._store.read(lambda connection: people_rows.find_account(connection, normal)) is not None

    async def find_account(self, name: str) -> Person | None:
        normal = normalize_name(name)
        row = await self._store.read(lambda connection: people_rows.find_account(connection, normal))
        return None if row is None else Person(BUILT_IN, row.subject, row.name)

    async def remove(self, name: str) -> Person:
        """Remove an account and end its sessions. Return the person, for the caller to end their grants. Raises
        SignInError."""
        normal = normalize_name(name)

        def take(connection: "Connection") -> Person:
            row = _require_account(connection, normal)
            people_rows.remove_account(connection, normal)
            people_rows.end_logins(connection, BUILT_IN, row.subject)
            grant_rows.mark_person_changed(connection, derive_subject(BUILT_IN, row.subject), self._now())
            return Person(BUILT_IN, row.subject, normal)

        return await self._store.transact(take, alone="accounts")

    async def set_password(self, name: str, password: str) -> Person:
        """Set an account's password and end its sessions. Raises SignInError."""
        normal = normalize_name(name)
        hashed = await self._hash_password(self._check_password(password, normal))

        def put(connection: "Connection") -> Person:
            row = _require_account(connection, normal)
            people_rows.set_password(connection, normal, hashed)
            people_rows.end_logins(connection, BUILT_IN, row.subject)
            return Person(BUILT_IN, row.subject, normal)

        return await self._store.transact(put, alone="accounts")

    def _check_password(self, password: str, name: str) -> str:
        """Return a new password in one spelling. Raises SignInError."""
        try:
            return check_password(password, (name, OWN_NAME, self._server))
        except WeakPasswordError as error:
            raise SignInError(str(error)) from None

    async def _hash_password(self, password: str) -> str:
        from argon2 import PasswordHasher  # start-up

        async with self._hashing:
            return await asyncio.to_thread(PasswordHasher(**COST).hash, password)

    async def _matches(self, hashed: str, password: str) -> bool:
        from argon2 import PasswordHasher  # start-up
        from argon2.exceptions import VerificationError

        try:
            async with self._hashing:  # also for unknown names, so that both take as long
                return await asyncio.to_thread(PasswordHasher(**COST).verify, hashed, compose_password(password) or "")
        except (VerificationError, UnicodeError):
            return False


def normalize_name(name: str) -> str:
    """Return a name in one spelling, on any keyboard (RFC 8265 section 3.3, roughly). Raises SignInError."""
    if len(name) > TYPED * MAX_NAME:  # first: normalizing marks takes time quadratic in their number
        raise SignInError(f"a name must have 1 to {MAX_NAME} characters")
    normal = unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", name.strip()).casefold())
    if not 1 <= len(normal) <= MAX_NAME:
        raise SignInError(f"a name must have 1 to {MAX_NAME} characters")
    if not all(character.isalnum() or character in "._-@+" or _is_mark(character) for character in normal):
        typed, usable = name.strip()[:MAX_NAME], _suggest_name(normal)
        example = f", such as {usable}" if usable else ""
        raise SignInError(f"{typed!r} can't be a name: it may contain only letters, digits and . _ - @ +{example}")
    return normal


def _suggest_name(normal: str) -> str:
    """Return a name that may be used in place of `normal`, or ""."""
    words = "".join(each if each.isalnum() or each in "._-@+" else " " for each in normal).split()
    return ".".join(words)


def normalize_name_or_empty(name: str) -> str:
    """Return `normalize_name`, or "" for an invalid name."""
    try:
        return normalize_name(name)
    except SignInError:
        return ""


def _is_of(device: str, password: str) -> bool:
    """Return whether the device cookie belongs to the account with this password hash."""
    try:
        decoded = base64.urlsafe_b64decode(device + "=")
    except ValueError:
        return False
    return len(decoded) == 32 and hmac.compare_digest(decoded[16:], _mark(decoded[:16], password))


def _mark(nonce: bytes, password: str) -> bytes:
    """Return the device cookie's proof. Its key is the password hash: 256 bits that only the database has."""
    return hmac.new(password.encode(), b"device" + nonce, hashlib.sha256).digest()[:16]


def _is_mark(character: str) -> bool:
    return unicodedata.category(character) in ("Mn", "Mc")


def _require_account(connection: "Connection", name: str) -> Any:
    row = people_rows.find_account(connection, name)
    if row is None:
        raise SignInError(f"there is no account {name!r}")
    return row


class PairingCode:
    """The code that creates the first account, on the page `where`. The code is in the log of the replica that made it;
    all know its hash, which is among `keys`. Guesses are counted by `counters`."""

    def __init__(
        self,
        where: str,
        keys: "Keys | None" = None,
        counters: "Counters | None" = None,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._where = where
        self._keys = keys if keys is not None else MemoryKeys(now)
        self._throttle = Throttle(counters if counters is not None else MemoryKeys(now, MAX_COUNTERS))

    async def offer(self) -> str:
        """Log a new code, and return the link that fills it in; "" if the last one is still valid, at any replica."""
        code = base64.b32encode(secrets.token_bytes(PAIRING_BYTES)).decode().rstrip("=")
        try:
            if not await self._keys.set_if_absent(PAIRING, _hash_code(code), PAIRING_LIFETIME):
                return ""
        except BusUnreachableError as error:
            log.warning("no pairing code is offered: %s", error)
            return ""
        grouped = "-".join(code[at : at + 4] for at in range(0, len(code), 4))
        link = f"{self._where}#code={grouped}"  # a fragment reaches no server, log or referrer
        log.warning(NO_ACCOUNT, link, grouped, PAIRING_LIFETIME // 60)
        return link

    async def verify(self, code: str, address: str) -> bool:
        """Return whether `code` is the one in the log; `address` is "" if unknown.

        Raises ThrottledError, StateError.
        """
        paces = *block_backoffs(address, PAIRING_ADDRESS_BACKOFF), ("all", PAIRING_TOTAL_BACKOFF)
        own = tuple((f"pairing {key}", pace) for key, pace in paces)
        await self._throttle.take(own)
        try:
            hashed = await self._keys.get(PAIRING) or b""
        except BusUnreachableError as error:
            raise StateError(f"the pairing code can't be checked: {error}") from None
        right = hmac.compare_digest(_hash_code(code), hashed)
        if right:
            await self._throttle.refund(1, own)
        return right

    async def expire(self) -> None:
        """Drop the code: an account exists."""
        with contextlib.suppress(BusUnreachableError):  # it ends by itself, and creates no second account
            await self._keys.delete(PAIRING)


def _hash_code(code: str) -> bytes:
    """Return the hash of a code typed in any case and with any separators."""
    return hashlib.sha256("".join(filter(str.isalnum, code)).upper().encode()).digest()
