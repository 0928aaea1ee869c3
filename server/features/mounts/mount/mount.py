"""Hold one mounted server: its lists, how it is, and its conversations."""

import asyncio
import contextlib
import logging
import math
import time
from collections.abc import Callable, Collection, Sequence
from typing import Any, Protocol
from weakref import WeakValueDictionary

from msgspec.structs import replace

from toolgate.server.features.mounts.config.mount_config import MountConfig
from toolgate.server.features.mounts.kept_secrets.resolver import (
    FoundSecrets,
    ResolvedMount,
    SecretResolver,
    list_hidden,
)
from toolgate.server.features.mounts.lists.list_store import (
    ListStore,
    MountLists,
    drop_long_names,
    drop_secret_names,
    fetch_lists,
    list_repeated,
)
from toolgate.server.features.mounts.lists.personal_lists import PersonalLists
from toolgate.server.features.mounts.mount.backoff import RestartDelay
from toolgate.server.features.mounts.mount.mount_standing import MountRecord, MountStanding, MountState, RunningMount
from toolgate.server.features.mounts.mount.pace import LONG, SHORT, ChangePace
from toolgate.server.features.mounts.mount.pool import SessionKey, SessionPool
from toolgate.server.features.mounts.mount.profile import ClientProfile
from toolgate.server.features.mounts.mount.watching import ResourceWatches
from toolgate.server.features.mounts.upstream.errors import (
    MountError,
    UpstreamFault,
    UpstreamRefusedError,
    hide_secrets,
)
from toolgate.server.features.mounts.upstream.session import UpstreamSession

MAX_REFRESHES = 32  # at once
MAX_FRESH = 256  # kinds of clients
MAX_OWNERS = 10_000  # of secrets that lists were fetched with
OVER = -math.inf  # when lists hold that have to be fetched again
MAX_ASKERS = 8  # who are known to ask for the same lists: one of them will do
CHANGES = frozenset(
    (
        "notifications/tools/list_changed",
        "notifications/prompts/list_changed",
        "notifications/resources/list_changed",
    )
)

log = logging.getLogger("toolgate.mounts")


class Opener(Protocol):
    """Opens conversations with the mounted server."""

    async def open(
        self, key: SessionKey, mount: ResolvedMount, on_notice: Callable[[str, dict[str, Any]], None]
    ) -> UpstreamSession:
        """Return a new one with these secrets; `on_notice(method, params)` gets what the mounted server tells by
        itself. Raises MountError."""
        ...

    def list_tokens(self, principal: str) -> Sequence[str]:
        """Return the tokens that a principal's conversations carry now, which are not repeated to anybody."""
        ...

    async def close(self) -> None: ...


class ListGate(Protocol):
    """Decides what of the lists is served."""

    def note(self, profile: str, lists: MountLists, hidden: Collection[str] = ()) -> None:
        """Take what is listed for clients of a profile, before anybody is shown it. What is kept of it has no `hidden`
        texts."""
        ...

    def renew(self) -> None:
        """Look at all lists again, since others may count than before."""
        ...

    def select(self, lists: MountLists) -> MountLists:
        """Return what of the lists is served."""
        ...

    def withhold(self, lists: MountLists) -> MountLists:
        """Return what of the lists is not served."""
        ...

    def count_tools(self) -> int:
        """Return how many tools are served, to whomever."""
        ...

    def count_withheld(self) -> int:
        """Return how many items are listed and not served."""
        ...


class Mount:
    """One mounted server. `on_change(principal)` is called when its lists differ, those of one person or with "" those
    of all; `on_state()` when its state does; `on_turn` as
    by `MountStanding`. `secrets`: those that its configuration names, if any; `personal`: where
    the lists of single people are kept."""

    def __init__(
        self,
        config: MountConfig,
        store: ListStore,
        gate: ListGate,
        opener: Opener,
        on_change: Callable[[str], None] = lambda _principal: None,
        on_state: Callable[[], None] = lambda: None,
        on_turn: Callable[[str, UpstreamFault | None], None] = lambda _principal, _fault: None,
        secrets: SecretResolver | None = None,
        personal: PersonalLists | None = None,
    ) -> None:
        self.config = config
        self._store = store
        self._gate = gate
        status = "configured" if store.is_empty else "known"
        self.standing = MountStanding(config.name, status, on_state, on_turn)
        self._secrets = secrets
        self._opener = opener
        self._on_change = on_change
        self._personal = personal
        self._loads: dict[ClientProfile, asyncio.Task[bool]] = {}  # that are under way, or have found nothing
        self._pool = SessionPool(self._open)
        self._with: dict[str, FoundSecrets] = {}  # the secrets that lists were fetched with, by owner
        self._fresh: dict[ClientProfile, float] = {}  # whose lists were fetched since the start → until when they hold
        self._pace = ChangePace()
        self._changed: dict[ClientProfile, float] = {}  # whose lists have to be fetched again, and after which seconds
        self._refreshes: dict[ClientProfile, asyncio.Task[None]] = {}
        self._askers: dict[ClientProfile, list[SessionKey]] = {}  # who asks for lists that are fetched, the latest last
        self._asked = asyncio.Event()
        self.watches = ResourceWatches(lambda key: self.get_session(self._pool.find_latest(key)))
        self._uses: dict[str, float] = {}  # by principal: when it was used last here, the latest last
        self._turns: WeakValueDictionary[SessionKey, asyncio.Lock] = WeakValueDictionary()  # one call at a time

    @property
    def name(self) -> str:
        return self.config.name

    @property
    def state(self) -> MountState:
        return self.standing.state

    @property
    def running(self) -> int:
        """The number of open conversations."""
        return len(self._pool.list_running())

    async def read_record(self) -> MountRecord:
        """Return what has happened to it, and what runs."""
        running = [
            RunningMount(key.principal, await session.read_log(), session.peer.rubbish)
            for key, session in self._pool.list_running()
        ]
        return MountRecord(list(self.standing.turns), running)

    def is_personal(self, principal: str) -> bool:
        """Return whether a principal has lists of its own, as of the last `note_secrets`."""
        return self.config.is_personal or (self._secrets is not None and self._secrets.is_personal(principal))

    def list_shared(self) -> list[MountLists]:
        """Return what all clients of each profile are shown who have no secret of their own."""
        return [self._gate.select(lists) for lists in self._store.common]

    def list_personal(self) -> list[MountLists]:
        """Return what single persons are shown who have secrets of their own, where it differs."""
        return [self._gate.select(lists) for lists in self._store.personal]

    def list_all(self) -> list[MountLists]:
        """Return what clients of each profile are shown, the latest last."""
        return [self._gate.select(lists) for lists in self._store.distinct]

    def list_for(self, principal: str) -> list[MountLists]:
        """Return what a person's clients are shown, as far as it is known."""
        return [self._gate.select(lists) for lists in self._find_all(principal)]

    def list_withheld(self, principal: str) -> list[MountLists]:
        """Return what is listed for a person's clients and not served, as far as it is known."""
        return [self._gate.withhold(lists) for lists in self._find_all(principal)]

    def _find_all(self, principal: str) -> list[MountLists]:
        return self._store.of_principal(principal) if self.is_personal(principal) else self._store.common

    def renew(self) -> None:
        """Look again at what of the lists is served."""
        self._gate.renew()

    def find_withheld(self, key: SessionKey) -> MountLists | None:
        """Return what is listed for clients with this key and not served, or None if it is not known yet."""
        lists = self._store.find(self.find_audience(key))
        return None if lists is None else self._gate.withhold(lists)

    def count_tools(self) -> int:
        """Return how many tools are served, to whomever."""
        return self._gate.count_tools()

    def count_withheld(self) -> int:
        """Return how many items are listed and not served."""
        return self._gate.count_withheld()

    async def note_secrets(self, principal: str) -> None:
        """Look at which secrets hold for a principal now. Raises MountError."""
        await self._find_secrets(principal)

    def find_audience(self, key: SessionKey) -> ClientProfile:
        """Return whose lists those of a key are: those of all such clients, or of one person's."""
        return key.profile.for_principal(key.principal) if self.is_personal(key.principal) else key.profile

    def find_lists(self, key: SessionKey) -> MountLists | None:
        """Return what clients with this key are shown, or None if it is not known yet."""
        lists = self._store.find(self.find_audience(key))
        return None if lists is None else self._gate.select(lists)

    async def load_lists(self, key: SessionKey) -> None:
        """Show what a person's clients with this key were shown before the start, if nothing is known of them yet."""
        profile = self.find_audience(key)
        if self._personal is None or not profile.principal or self._store.find(profile) is not None:
            return
        loading = self._loads.get(profile)
        if loading is None:
            if len(self._loads) >= MAX_FRESH:
                self._loads.clear()
            loading = asyncio.get_running_loop().create_task(self._load(self._personal, profile, key))
            self._loads[profile] = loading
        if await asyncio.shield(loading):  # a client that leaves must not end what others wait for
            self._loads.pop(profile, None)

    async def _load(self, personal: PersonalLists, profile: ClientProfile, key: SessionKey) -> bool:
        """Return whether there were lists, fetched with the secrets that hold now."""
        try:
            secrets = list_hidden(self._resolve(await self._find_secrets(key.principal)))
        except MountError:  # it is told at the call
            return False
        kept = await personal.find(profile, secrets)
        if kept is None or self._store.find(profile) is not None:
            return kept is not None
        self._show(profile, kept, secrets, is_news=False)
        return True

    def _show(
        self, profile: ClientProfile, lists: MountLists, secrets: Collection[str], *, is_news: bool = True
    ) -> bool:
        """Show lists from now on, and return whether they differ. `is_news`: clients may have been shown others. What
        is kept of them lacks the secrets; arguments are none, since others on the machine see them."""
        name, hidden = profile.key.decode(), list_repeated(lists, {*secrets}.difference(self.config.args))
        if not self._store.put(profile, lists, hidden):
            return False
        self._gate.note(name, self._store.all[name], hidden)
        self._on_change(profile.principal if is_news else "")  # before anybody may be shown them
        return True

    def is_stale(self, key: SessionKey) -> bool:
        """Return whether the lists are older than the mounted server said that they hold."""
        return time.monotonic() > self._fresh.get(self.find_audience(key), math.inf)

    def refresh(self, key: SessionKey, after: float = 0.0) -> "asyncio.Task[None]":
        """Fetch the lists for those who see the same, once for all that ask, and again until that succeeds."""
        profile = self.find_audience(key)
        running = self._refreshes.get(profile)
        if running is None and not profile.principal and self._count_shared() >= MAX_REFRESHES:
            return next(each for name, each in self._refreshes.items() if not name.principal)  # the mount is away
        askers = self._askers.setdefault(profile, [])
        if askers[-1:] != [key]:  # whoever can open it: another may not be able to
            askers[:] = [*(each for each in askers if each != key), key][-MAX_ASKERS:]
            self._asked.set()
        if running is None or running.done():
            work = self._refresh(profile, after)
            running = self._refreshes[profile] = asyncio.get_running_loop().create_task(work)
            running.add_done_callback(lambda task: None if task.cancelled() else task.exception() and None)
        return running

    def _count_shared(self) -> int:
        return sum(not profile.principal for profile in self._refreshes)

    async def get_session(self, key: SessionKey) -> UpstreamSession:
        """Return an open conversation. Raises MountError."""
        self._note_use(key.principal)
        found = await self._find_secrets(key.principal)
        left = self.standing.seconds_left(key.principal)
        if left and not self._pool.has(key, found):
            self._resolve(found)  # what is missing says more
            raise MountError("BACKING_OFF", f"it failed a moment ago, and is tried again in {left:.0f} s")
        return await self._pool.get(key, found)

    def find_use(self, principal: str) -> float | None:
        """Return when a principal used it last here, in seconds since 1970, or None if that is not known."""
        return self._uses.get(principal)

    def end_principal(self, principal: str) -> None:
        """End the conversations of a principal, and what is done for it alone. Lists that others wait for are fetched
        for one of these."""
        for profile, askers in list(self._askers.items()):
            askers[:] = [key for key in askers if key.principal != principal]
            if not askers:
                del self._askers[profile]
                if (task := self._refreshes.pop(profile, None)) is not None:
                    task.cancel()
        self._pool.end(lambda key: key.principal == principal)
        self._store.forget(principal)
        if self._secrets is not None:
            self._secrets.forget(principal)

    def note_sign_in(self, principal: str) -> None:
        """A person has signed in at the mounted server: calls that begin now have a new conversation, and what was
        listed stays until there is something else."""
        self._pool.outdate(principal)
        self._note_signed(principal)

    def end_sign_in(self, principal: str) -> None:
        """A person has ended their connection to the mounted server: what was opened for them is over."""
        self._pool.end(lambda key: key.principal == principal)
        self._note_signed(principal)

    def _note_signed(self, principal: str) -> None:
        self.standing.forgive(principal)
        for profile in self._fresh:
            if profile.principal == principal:
                self._fresh[profile] = OVER
        self._repeat_refreshes(principal)

    def end_outdated(self, principal: str) -> None:
        """End the conversations of a principal whose secrets are others now, as soon as their calls have ended."""
        if self._secrets is not None:
            self._pool.outdate(principal)
            self._repeat_refreshes(principal)

    def _repeat_refreshes(self, principal: str) -> None:
        """Have lists fetched again that are fetched for a principal with what held until now."""
        self._changed.update((profile, 0.0) for profile in self._refreshes if profile.principal == principal)

    def end_session(self, session: str) -> None:
        """End the conversations that belong to a session of ours alone."""
        self._pool.end(lambda key: bool(session) and key.session == session)

    def end_unused(self, session: str, seconds: float) -> None:
        """End the conversations that belong to a session of ours alone, if they were not used for so long."""
        self._pool.end_unused(lambda key: bool(session) and key.session == session, seconds)

    async def take_turn(self, key: SessionKey) -> contextlib.ExitStack:
        """Return the turn of one call, whose end is that of the context: where questions are to be of one call, those
        of a conversation come one at a time. Raises MountError."""
        turn = contextlib.ExitStack()
        if self.config.asks_one:
            lock = self._turns.setdefault(key, asyncio.Lock())
            try:
                async with asyncio.timeout(self.config.timeout):
                    await lock.acquire()
            except TimeoutError:
                raise MountError("LIMITED", "it is called one at a time: another call waits for its answer") from None
            turn.callback(lock.release)
        return turn

    async def close(self) -> None:
        for task in self._refreshes.values():
            task.cancel()
        await self._pool.close()
        await self._opener.close()

    async def restart(self) -> None:
        """End its conversations: the next request opens new ones."""
        pool, self._pool = self._pool, SessionPool(self._open)
        self.standing.forgive()
        await pool.close()

    async def _find_secrets(self, principal: str) -> FoundSecrets | None:
        """Return the secrets that hold for a principal now. Others than before may work, and show other lists. Raises
        MountError."""
        if self._secrets is None:
            return None
        before = self._secrets.recall(principal)
        found = await self._secrets.find(principal)
        if before is not None and before != found:
            self.standing.forgive(principal)
            self._asked.set()
        self._note_secrets(principal if found.is_personal else "", found)
        return found

    def _note_use(self, principal: str) -> None:
        self._uses.pop(principal, None)
        if len(self._uses) >= MAX_OWNERS:
            del self._uses[next(iter(self._uses))]
        self._uses[principal] = time.time()

    def _note_secrets(self, owner: str, found: FoundSecrets) -> None:
        """Have lists fetched again that were fetched with other secrets."""
        if self._with.setdefault(owner, found) == found:
            return
        if len(self._with) >= MAX_OWNERS:
            self._with.clear()
        self._with[owner] = found
        for profile in self._fresh:
            if profile.principal == owner:
                self._fresh[profile] = OVER

    def _find_owner(self, key: SessionKey, found: FoundSecrets | None) -> str:
        """Return whose secrets or sign-in a conversation has, or "" for those that all share."""
        return key.principal if self.config.is_personal or (found is not None and found.is_personal) else ""

    def _resolve(self, found: FoundSecrets | None) -> ResolvedMount:
        """Return the mount with its secrets. Raises MountError."""
        if self._secrets is None or found is None:
            return ResolvedMount(self.config)
        return self._secrets.fill_in(found)

    async def _open(self, key: SessionKey, found: FoundSecrets | None) -> UpstreamSession:
        def note(method: str, params: dict[str, Any]) -> None:
            if method in CHANGES:
                pause = self._changed[self.find_audience(key)] = self._pace.note(time.monotonic())
                self.refresh(key, pause)
            else:
                self.watches.note(method, params)

        hidden: Collection[str] = ()
        try:
            mount = replace(self._resolve(found), owner=self._find_owner(key, found))
            hidden = list_hidden(mount)
            session = await self._opener.open(key, mount, note)
        except MountError as error:
            tokens = self._opener.list_tokens(key.principal)
            fault = UpstreamFault(error.code, hide_secrets(error.sentence, [*hidden, *tokens]))
            is_theirs = bool(self._find_owner(key, found))
            waits = error.code not in ("SIGN_IN_REQUIRED", "IDENTITY_MISSING")  # until then nobody has tried anything
            self.standing.note_failure(key.principal, fault, is_theirs=is_theirs, waits=waits)
            raise fault.create_error() from None
        session.hidden, session.secrets = hidden, mount.values
        session.owner = self._find_owner(key, found)
        self.standing.note_open(key.principal)
        opened = time.monotonic()
        session.peer.on_failure = lambda fault: self._note_end(key, session, fault, opened)
        session.follow_lists()
        if self._fresh.get(self.find_audience(key), OVER) == OVER:
            self.refresh(key)
        return session

    def _note_end(self, key: SessionKey, session: UpstreamSession, fault: UpstreamFault, opened: float) -> None:
        if not session.peer.has_expired:
            hidden = [*session.hidden, *self._opener.list_tokens(key.principal)]
            told = UpstreamFault(fault.code, hide_secrets(fault.sentence, hidden))
            is_theirs = bool(session.owner)
            self.standing.note_end(key.principal, told, time.monotonic() - opened, is_theirs=is_theirs)

    def _note_fresh(self, profile: ClientProfile, lists: MountLists) -> None:
        if len(self._fresh) >= MAX_FRESH:
            self._fresh.clear()
        seconds = math.inf if lists.ttl is None else max(lists.ttl, LONG)
        self._fresh[profile] = time.monotonic() + seconds

    async def _fetch(self, key: SessionKey, owner: str) -> tuple[MountLists, Collection[str]] | None:
        """Return the lists and the secrets that they may tell, or None where they would not be those of this owner.
        Raises MountError."""
        found = await self._find_secrets(key.principal)
        if self._find_owner(key, found) != owner:
            return None
        session = await self.get_session(key)
        if session.owner != owner:  # other secrets hold since
            return None
        try:
            listed = drop_long_names(await fetch_lists(session), self.name)
            tokens = self._opener.list_tokens(key.principal)
            return drop_secret_names(listed, self.name, [*session.secrets, *tokens]), session.hidden
        except UpstreamRefusedError as error:
            told = hide_secrets(str(error), [*session.hidden, *self._opener.list_tokens(key.principal)])
            raise MountError("LIST_FAILED", f"it refused to list what it has: {told}") from None
        except MountError as error:
            if error.code != "TOKEN_REFUSED":  # this one comes once a conversation is open, and nobody has noted it
                raise
            raise MountError("LIST_FAILED", f"it refused to list what it has: {error.sentence}") from None

    async def fetch_lists(self, key: SessionKey) -> MountLists:
        """Return what clients with this key are shown, fetched now if it is not known. Raises MountError."""
        await self.get_session(key)
        if self.find_lists(key) is None:
            await asyncio.wait([self.refresh(key)])
        if (found := self.find_lists(key)) is not None:
            return found
        profile = self.find_audience(key)
        fetched = await self._fetch(key, profile.principal)  # it says why
        if fetched is not None:
            await self._keep(profile, key, *fetched)
        if (found := self.find_lists(key)) is None:
            raise MountError("LIST_FAILED", "its secrets or lists have changed meanwhile: try again")
        return found

    async def _refresh(self, profile: ClientProfile, after: float) -> None:
        if after:
            await asyncio.sleep(after)
        await self._fetch_and_keep(profile)
        while profile in self._changed and self._askers.get(profile):  # they have changed meanwhile
            await asyncio.sleep(self._changed[profile])
            await self._fetch_and_keep(profile)
        for rows in (self._refreshes, self._askers, self._changed):
            rows.pop(profile, None)

    async def _fetch_and_keep(self, profile: ClientProfile) -> None:
        """Take the lists, as soon as they can be fetched for one of those who ask. What one person alone is shown is
        tried once: whoever asks again has it tried again."""
        delay = RestartDelay()
        while True:
            self._changed.pop(profile, None)
            key = self._askers[profile][-1]
            try:
                fetched = await self._fetch(key, profile.principal)
            except MountError as error:
                if error.code == "LIST_FAILED":  # others were noted as they came
                    self.standing.note_failure(key.principal, error.fault, is_theirs=bool(profile.principal))
                if profile.principal or self._pool.is_closed:
                    return
                delay.note_failure()
                left = max(self.standing.seconds_left(key.principal), delay.seconds_left)
                await self._wait_for_another(profile, key, left)
                continue
            if fetched is not None:
                await self._keep(profile, key, *fetched)
                return
            askers = self._askers[profile]
            if key in askers:
                askers.remove(key)
            if not askers:
                return

    async def _keep(self, profile: ClientProfile, key: SessionKey, lists: MountLists, secrets: Collection[str]) -> None:
        """Show the lists from now on."""
        self.standing.note_success(key.principal)
        self._note_fresh(profile, lists)
        if not self._show(profile, lists, [*secrets, *self._opener.list_tokens(key.principal)]):
            return
        if not profile.principal:
            await asyncio.to_thread(self._store.save)
        elif self._personal is not None and (kept := self._store.find(profile)) is not None:
            await self._personal.keep(profile, kept, secrets)

    async def _wait_for_another(self, profile: ClientProfile, key: SessionKey, seconds: float) -> None:
        """Wait so long, or until somebody else asks for the same lists."""
        self._asked.clear()
        if self._askers[profile][-1] == key:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(max(seconds, SHORT)):
                    await self._asked.wait()
