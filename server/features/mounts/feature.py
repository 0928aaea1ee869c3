"""Plug mounted servers into the server: their parts, what each client is shown of them, and their end."""

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

from toolgate.server.app.host import AppHost, Job
from toolgate.server.base.watch import watch_folders
from toolgate.server.features.mounts.assembly.choices import LazyChoices
from toolgate.server.features.mounts.assembly.mounts import MountFactory
from toolgate.server.features.mounts.assembly.own_secrets import OwnSecrets
from toolgate.server.features.mounts.assembly.pins import PinReader
from toolgate.server.features.mounts.assembly.sign_ins import LazySignIns
from toolgate.server.features.mounts.choices.switched_off import SwitchedOff
from toolgate.server.features.mounts.config.mount_config import MountConfig
from toolgate.server.features.mounts.config.table import read_own_mounts
from toolgate.server.features.mounts.control import MountControl
from toolgate.server.features.mounts.file_comparison import FileComparison
from toolgate.server.features.mounts.gauges import mount_rows
from toolgate.server.features.mounts.health import describe_mounts
from toolgate.server.features.mounts.kept_secrets.secret_store import SecretStore
from toolgate.server.features.mounts.lists import personal_lists
from toolgate.server.features.mounts.mount.mount_standing import MountState
from toolgate.server.features.mounts.mount.parked_elsewhere import KIND, ParkedOffice
from toolgate.server.features.mounts.mount.parked_requests import ParkedRequests
from toolgate.server.features.mounts.mount_events import MountEvents
from toolgate.server.features.mounts.mount_set import MountSet
from toolgate.server.features.mounts.openers import make_id
from toolgate.server.features.mounts.parts.client_sessions import LEFT_AFTER, LOOK
from toolgate.server.features.mounts.parts.views import MountViews, ServedMount, find_key
from toolgate.server.features.mounts.publisher import StatusPublisher
from toolgate.server.features.mounts.upstream.errors import UpstreamFault
from toolgate.server.protocol.notifications import LISTS
from toolgate.tools.api.registry import Part, Registry

if TYPE_CHECKING:
    from collections.abc import Iterable

    from toolgate.server.base.reports.page_part import PagePart
    from toolgate.server.features.mounts.pages.site import MountSite
    from toolgate.transports.web.http import Request, WebEndpoint
    from toolgate.transports.web.page_context import PageContext, Visitor

PINS_EVERY = 15.0  # seconds between two looks at what other servers and commands have approved
FOLLOW_AFTER = 1.0  # seconds after the start that the config file is followed
DEBOUNCE = 200  # ms that changes of it are gathered for

log = logging.getLogger("toolgate.mounts")


class MountsFeature:
    """The servers of the config file's `[mounts.NAME]`."""

    def __init__(self) -> None:
        self._mounts: MountSet | None = None
        self._id = ""
        self._views = MountViews(self._list_served, lambda: self._id, self._find_choice, self._find_page)
        self._events = MountEvents()
        self._control: MountControl | None = None
        self._publisher: StatusPublisher | None = None
        self._comparison: FileComparison | None = None  # with other servers on the state
        self._pins: PinReader | None = None
        self._choices: LazyChoices | None = None
        self._sign_ins: LazySignIns | None = None
        self._secrets: OwnSecrets | None = None
        self._site: MountSite | None = None  # once a page is served
        self._serves = False  # whether other lists can be announced

    def build(self, host: AppHost) -> None:
        self._choices = LazyChoices(host, partial(self._note_choice, host), self._tell_processes)
        sign_ins = self._sign_ins = LazySignIns(host, partial(self._note_sign_in, host))
        secrets = self._secrets = OwnSecrets(host, self._list_served, partial(self._fetch_lists, host))
        host.mount_names += host.config.mounts
        host.part_sources += (self._views.list_parts, self._list_events)
        host.metric_rows.append(lambda: mount_rows(lambda: [served.mount for served in self._list_served()]))
        host.health_parts.append(lambda: describe_mounts([served.mount for served in self._list_served()]))
        host.on.swap.append(lambda _before, _after: self._publish_soon())  # other names are served
        host.on.removal.append(lambda principal: self._end_principal(host, principal))
        host.page_parts += (
            lambda: self._open_site(host).mounts_part,
            secrets.open_part,
            lambda: self._create_connections_part(sign_ins),
            lambda: self._open_site(host).people_part,
        )
        host.page_routes.append(lambda pages, identify: self._add_pages(host, pages, identify))
        if host.config.mounts:
            host.views.take(lambda _: self._views)
        host.jobs.append(Job(lambda: self._follow(host), FOLLOW_AFTER))
        host.jobs.append(Job(self._end_left, LOOK))
        if host.config.is_remote:
            host.jobs.append(Job(lambda: sign_ins.open().end_orphans(), FOLLOW_AFTER))

    async def connect(self, host: AppHost) -> None:
        """Raises UsageError for a table that can't be read."""
        self._id = make_id(host)
        choices, sign_ins = self._choices, self._sign_ins
        assert choices is not None and sign_ins is not None  # it was built
        pins = self._pins = PinReader(host, lambda: self._renew(host))
        await choices.load()
        on_lists = partial(self._note_lists, host)
        factory = MountFactory(host, pins.book, sign_ins, self._views, on_lists, self._publish_soon, self._tell_turn)
        self._mounts = MountSet(factory.create, factory.close, lambda: self._serve_others(host), pins.load)
        await self._mounts.apply(read_own_mounts(host.config))

    @contextlib.asynccontextmanager
    async def run(self, host: AppHost) -> AsyncGenerator[None]:
        self._serves = True
        if host.is_shared and (bus := host.bus()) is not None:
            bus.mail.receive(KIND, ParkedOffice(self._find_parked).handle)
            for shared in (self._choices, self._sign_ins, self._secrets):
                if shared is not None:
                    shared.share_with(bus)
            self._comparison = FileComparison(bus, self._list_configs, self._publish_differing)
            host.jobs.append(Job(self._comparison.run, FOLLOW_AFTER))
            host.jobs.append(Job(self._follow_pins, PINS_EVERY))
        self._control = MountControl(host.folder())
        publisher = self._publisher = StatusPublisher(self._control, self._read_states, self._views.list_tool_names)
        await publisher.begin()
        try:
            yield
        finally:
            self._serves = False
            if self._mounts is not None:
                await self._mounts.close()
            if self._pins is not None:
                await self._pins.book.close()
            for closed in (self._choices, self._secrets):
                if closed is not None:
                    closed.close()
            if self._sign_ins is not None:
                await self._sign_ins.close()
            await publisher.end()

    def _create_connections_part(self, sign_ins: LazySignIns) -> "PagePart":
        from toolgate.server.features.mounts.sign_in.page_part import ConnectionsPart  # start-up: HTTP alone has pages

        return ConnectionsPart(sign_ins.open())

    def _add_pages(
        self, host: AppHost, pages: "PageContext", identify: "Callable[[Request], Awaitable[Visitor | None]]"
    ) -> "Iterable[tuple[str, WebEndpoint]]":
        if self._sign_ins is not None:
            self._sign_ins.take_pages(pages.public_url)
        return self._open_site(host).routes(pages, identify)

    def _open_site(self, host: AppHost) -> "MountSite":
        from toolgate.server.features.mounts.pages.site import MountSite  # start-up, as above

        if self._site is None:
            assert self._choices is not None and self._sign_ins is not None  # it was built
            self._site = MountSite(host, self._list_served, self._choices.open(), self._sign_ins.open())
        return self._site

    def _find_choice(self, principal: str) -> SwitchedOff | None:
        return self._choices.find(principal) if self._choices is not None else None

    def _find_page(self, mount: str) -> str:
        """Return where a person switches tools of a mount off and on, or ""."""
        url = self._sign_ins.public_url if self._sign_ins is not None else ""
        return f"{url}/mounts/tools?name={mount}" if url else ""

    def _note_choice(
        self, host: AppHost, principal: str, before: SwitchedOff | None, after: SwitchedOff | None
    ) -> None:
        """A person has switched something off or on, here or at another server: their clients hear of it."""
        if self._choices is not None and not self._choices.has(before):
            self._views.drop_choice(before)
        if not self._serves:
            return
        has_other_mounts = before is None or after is None or before.mounts != after.mounts
        for kind in LISTS if has_other_mounts else ("tools",):
            host.notifications().announce_list(kind, principal)
        if has_other_mounts:
            host.server().updates.renew()
        if self._site is not None:
            self._site.mounts_part.notify(principal)

    async def _tell_processes(self) -> None:
        """Have other processes on this machine look at what people have switched off."""
        if self._control is not None:
            with contextlib.suppress(OSError):
                await asyncio.to_thread(self._control.wish, "choices", "all")

    def _note_sign_in(self, host: AppHost, principal: str, mount: str, is_over: bool) -> None:
        for served in self._list_served():
            if served.mount.name == mount:
                (served.mount.end_sign_in if is_over else served.mount.note_sign_in)(principal)
                if not is_over:
                    self._fetch_lists(host, served, principal)

    async def _follow(self, host: AppHost) -> None:
        mounts, control, publisher = self._mounts, self._control, self._publisher
        assert mounts is not None and control is not None and publisher is not None  # the server runs
        folders = [host.config.config_path.parent, *control.wishes]
        if self._pins is not None:  # a wish of the time before `begin` is not followed
            names = [served.mount.name for served in self._list_served()]
            await self._pins.reload([name for name in names if self._pins.book.is_loaded(name)])

        async def look() -> None:
            await mounts.follow(host.config)
            for name in await asyncio.to_thread(control.take_wishes, "restart"):
                await mounts.restart(name)
            for name in await asyncio.to_thread(control.take_wishes, "logs"):
                if (record := await mounts.read_record(name)) is not None:
                    await asyncio.to_thread(control.answer, name, record)
            if (names := await asyncio.to_thread(control.take_wishes, "pins")) and self._pins is not None:
                await self._pins.reload(names)
            if await asyncio.to_thread(control.take_wishes, "choices") and self._choices is not None:
                self._choices.load_soon()
            await publisher.publish()

        await watch_folders("config", lambda: folders, look, DEBOUNCE)

    async def _end_left(self) -> None:
        """End what belongs to the sessions of clients that have left without a word."""
        while True:
            for session in self._views.sessions.find_left(time.monotonic()):
                for served in self._list_served():
                    served.mount.end_unused(session, LEFT_AFTER)
            await asyncio.sleep(LOOK)

    async def _follow_pins(self) -> None:
        """Take what is decided at other servers, again and again."""
        pins, choices = self._pins, self._choices
        assert pins is not None and choices is not None  # the server runs
        while True:
            await pins.reload([served.mount.name for served in self._list_served()])
            choices.load_soon()
            await asyncio.sleep(PINS_EVERY)

    def _renew(self, host: AppHost) -> None:
        """Other pins count than before."""
        for served in self._list_served():
            served.mount.renew()
        self._refresh(host)

    def _find_parked(self, name: str) -> tuple[ParkedRequests, float] | None:
        found = (each for each in self._list_served() if each.mount.name == name)
        return next(((each.forwarder.parked, each.mount.config.timeout) for each in found), None)

    def _list_configs(self) -> list[MountConfig]:
        return [served.mount.config for served in self._list_served()]

    def _publish_differing(self) -> None:
        if self._publisher is not None and self._comparison is not None:
            self._publisher.differing = self._comparison.differing
            self._publish_soon()

    def _read_states(self) -> dict[str, MountState]:
        return {served.mount.name: served.mount.state for served in self._list_served()}

    def _publish_soon(self) -> None:
        if self._serves and self._publisher is not None:
            self._publisher.publish_soon()

    async def _end_principal(self, host: AppHost, principal: str) -> None:
        for served in self._list_served():
            served.forwarder.parked.end(principal)
            served.mount.end_principal(principal)
        assert self._choices is not None and self._sign_ins is not None  # it was built
        await self._choices.remove(principal)
        await personal_lists.remove_person(host.store(), principal)
        await SecretStore(host.store(), host.keys()).remove_all(principal)
        await self._sign_ins.open().disconnect(principal)

    def _tell_turn(self, mount: str, principal: str, fault: UpstreamFault | None) -> None:
        """A mount fails for a principal, or works again."""
        self._events.tell(mount, principal, fault)
        if self._site is not None:
            self._site.mounts_part.notify(principal)

    def _list_events(self, _: Registry) -> Sequence[Part]:
        return self._events.types if self._list_served() else ()

    def _list_served(self) -> list[ServedMount]:
        return self._mounts.list_all() if self._mounts is not None else []

    def _serve_others(self, host: AppHost) -> None:
        """Serve other mounts. Clients that are there hear of new ones: their lists are fetched now."""
        self._refresh(host)
        for served in self._list_served():
            if not served.mount.list_all():
                self._fetch_lists(host, served)

    def _fetch_lists(self, host: AppHost, served: ServedMount, principal: str | None = None) -> None:
        """Fetch the lists of a mount for the clients that are there, or those of one person: they hear of a change.
        Those of a person that listen without a session list again, which fetches theirs."""
        for session in list(host.server().notifications.sessions) if self._serves else ():
            if principal in (None, session.principal):
                served.mount.refresh(find_key(served.per, session))
        if principal is not None and self._serves:
            for kind in LISTS:
                host.server().notifications.announce_to_listeners(kind, principal)

    def _refresh(self, host: AppHost) -> None:
        self._publish_soon()
        if self._serves:
            if self._list_served():
                host.server().views = self._views  # the first mounts may come now
            host.served().refresh()

    def _note_lists(self, host: AppHost, principal: str) -> None:
        """The lists of a mount differ, of all or of one person: that others have the same may hide it from theirs."""
        self._refresh(host)
        if principal and self._serves:
            for kind in LISTS:
                host.notifications().announce_list(kind, principal)
