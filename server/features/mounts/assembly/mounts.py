"""Make one mount, with all that it is served by."""

from collections.abc import Callable
from functools import partial
from secrets import token_hex

from toolgate.server.app.host import AppHost
from toolgate.server.base.bus.memory_keys import MemoryKeys
from toolgate.server.features.mounts.assembly.pins import find_mode
from toolgate.server.features.mounts.assembly.sign_ins import LazySignIns
from toolgate.server.features.mounts.config.mount_config import MountConfig
from toolgate.server.features.mounts.control import FOLDER
from toolgate.server.features.mounts.kept_secrets.secret_store import KEY
from toolgate.server.features.mounts.lists.list_store import ListStore
from toolgate.server.features.mounts.lists.personal_lists import PersonalLists
from toolgate.server.features.mounts.mount.continued_calls import ContinuedCalls
from toolgate.server.features.mounts.mount.mount import Mount
from toolgate.server.features.mounts.mount.requests import RequestForwarder
from toolgate.server.features.mounts.openers import create_opener, create_resolver
from toolgate.server.features.mounts.parts.create import PartMaker
from toolgate.server.features.mounts.parts.views import MountViews, ServedMount
from toolgate.server.features.mounts.pins.book import PinBook
from toolgate.server.features.mounts.pins.gate import PinGate
from toolgate.server.features.mounts.upstream.errors import UpstreamFault
from toolgate.server.state.keys.sealed_state import Sealer


class MountFactory:
    """Makes the mounts of one server, and ends them. `on_lists(principal)`, `on_state()` and `on_turn(mount, principal,
    fault)` as those of `Mount`."""

    def __init__(
        self,
        host: AppHost,
        pins: PinBook,
        sign_ins: LazySignIns,
        views: MountViews,
        on_lists: Callable[[str], None],
        on_state: Callable[[], None],
        on_turn: Callable[[str, str, UpstreamFault | None], None],
    ) -> None:
        self._host = host
        self._pins = pins
        self._sign_ins = sign_ins
        self._views = views
        self._on_lists = on_lists
        self._on_state = on_state
        self._on_turn = on_turn
        bus = host.bus()
        self._keys = MemoryKeys() if bus is None else bus.keys
        self._issuer = "" if host.is_shared else token_hex(8)  # of tickets: another process knows nothing of this one's

    def create(self, config: MountConfig) -> ServedMount:
        host = self._host
        mount = self._create_mount(config)
        per = config.per or ("session" if config.url and host.config.is_remote else "person")
        waits = self._sign_ins.create_waits(config, partial(self._views.check, mount))
        continued = ContinuedCalls(self._keys, config.name, self._issuer) if config.limits.calls else None
        forwarder = RequestForwarder(mount, per, host.bus() if host.is_shared else None, waits, continued)
        return ServedMount(mount, forwarder, PartMaker(config, forwarder), per)

    async def close(self, served: ServedMount) -> None:
        served.forwarder.close()
        await served.mount.close()
        await self._sign_ins.close_mount(served.mount.config)

    def _create_mount(self, config: MountConfig) -> Mount:
        host = self._host
        store = ListStore(host.folder() / FOLDER, config, Sealer(host.keys().find(KEY), None))
        store.load()
        gate = PinGate(config, find_mode(host, config), self._pins, lambda: store.all)
        gate.begin(store.hidden)
        secrets, personal = create_resolver(host, config), None
        if config.is_personal or secrets is not None:
            personal = PersonalLists(host.store(), host.keys(), config.name, store.server)
        return Mount(
            config,
            store,
            gate,
            create_opener(host, config, self._sign_ins.create_tokens(config)),
            self._on_lists,
            self._on_state,
            partial(self._on_turn, config.name),
            secrets,
            personal,
        )
