"""Show each client what the mounted servers list for one that can do what it can."""

import asyncio
import contextlib
import time
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any
from weakref import WeakKeyDictionary

import msgspec

from toolgate.server.features.mounts.choices.switched_off import UNREADABLE, SwitchedOff
from toolgate.server.features.mounts.lists.list_store import MountLists
from toolgate.server.features.mounts.mount.mount import Mount
from toolgate.server.features.mounts.mount.pool import CLOSED, SessionKey
from toolgate.server.features.mounts.mount.profile import MAX_PATH, ClientProfile, create_profile, find_path
from toolgate.server.features.mounts.mount.requests import RequestForwarder, create_key
from toolgate.server.features.mounts.names import MountNames, choose_names
from toolgate.server.features.mounts.parts.client_sessions import ClientSessions
from toolgate.server.features.mounts.parts.connect_tool import CONNECT
from toolgate.server.features.mounts.parts.create import PartMaker
from toolgate.server.features.mounts.parts.own_registries import OwnRegistries, PartKey
from toolgate.server.features.mounts.parts.reduced_registries import ReducedRegistries
from toolgate.server.features.mounts.parts.relays import MountedRelay, ResourceRelay
from toolgate.server.features.mounts.parts.rewriting import UriRewriter
from toolgate.server.features.mounts.parts.withheld import WithheldParts
from toolgate.server.features.mounts.resource_uris import Contested, find_contested, format_contested, restore_contested
from toolgate.server.features.mounts.upstream.errors import LOOP, MountError
from toolgate.server.protocol.errors import InvalidRequest
from toolgate.server.protocol.registry_views import WithheldPart
from toolgate.server.protocol.session import Session
from toolgate.tools.api.context.context import Context
from toolgate.tools.api.errors import ToolError
from toolgate.tools.api.registry import Part, Registry, identify
from toolgate.tools.api.resource import Resource
from toolgate.tools.api.tool import Tool

PATIENCE = 1.5  # seconds that a first list may wait for mounts that are not known yet
MAX_VIEWS = 128  # kinds of clients whose registries are kept: a client may declare anything
MAX_ASKED = 256  # kinds of clients for which a mount was waited for
MAX_WITHHELD = 64  # lists of one mount whose parts that are not served are kept
MAX_TOLD = 1_000  # names of tools of one mount
MAX_INSTRUCTIONS = 16_384  # characters of all mounts together
MAX_OF_MOUNT = 4_096

OURS = "@"  # before the name of a mount: a tool for it, and none of its server's

Names = Mapping[tuple[str, str, str], str]  # mount, kind and original name → the name that is shown


class ServedMount(msgspec.Struct, frozen=True):
    """One mount, with what carries its requests and makes its parts. `per`: who shares a conversation."""

    mount: Mount
    forwarder: RequestForwarder
    maker: PartMaker
    per: str

    def list_originals(self, kind: str, lists: Sequence[MountLists]) -> dict[str, None]:
        """Return the names of all tools or prompts of these lists, each once."""
        return {name: None for each in lists for listed, name in self.maker.list_names(each) if listed == kind}

    @property
    def connect_names(self) -> MountNames:
        """What the tool is called that has people sign in: no part of the mounted server's."""
        return MountNames(f"{OURS}{self.mount.name}", self.mount.config.prefix, [CONNECT])

    def list_uris(self, lists: Sequence[MountLists]) -> list[str]:
        """Return the URIs and templates of these lists."""
        return [uri for each in lists for uri in self.maker.list_uris(each)]

    def lists(self, lists: MountLists | None, kind: str, original: str) -> bool:
        """Return whether these lists have a part."""
        if lists is None:
            return False
        return original in (self.list_uris([lists]) if kind == "resources" else self.list_originals(kind, [lists]))


class MountViews:
    """What each client is shown of the mounts, which `list_mounts()` returns.

    own_id: names this server on the path of a request
    find_choice: returns what a principal has switched off, or None while that is not known
    find_page: returns where a person decides that for a mount, or ""
    """

    def __init__(
        self,
        list_mounts: Callable[[], Sequence[ServedMount]],
        own_id: Callable[[], str],
        find_choice: Callable[[str], SwitchedOff | None],
        find_page: Callable[[str], str],
    ) -> None:
        self.sessions = ClientSessions()
        self._list_mounts = list_mounts
        self._own_id = own_id
        self._find_choice = find_choice
        self._find_page = find_page
        self._asked: WeakKeyDictionary[Mount, set[ClientProfile]] = WeakKeyDictionary()
        self._names: Names = {}
        self._contested: Contested = {}
        self._contested_for_some: Contested = {}  # with what single persons' lists have
        self._withheld: dict[str, dict[int, tuple[MountLists, WithheldParts]]] = {}  # by mount and the lists' id
        self._views: WeakKeyDictionary[Registry, dict[Hashable, Registry]] = WeakKeyDictionary()
        self._reduced = ReducedRegistries()
        self._private: frozenset[PartKey] = frozenset()  # what single persons alone are shown
        self._own: WeakKeyDictionary[Registry, OwnRegistries] = WeakKeyDictionary()

    def list_parts(self, registry: Registry) -> list[Part]:
        """Return all parts that some client is shown, beside those of the registry. The names follow from these."""
        self._names = self._choose_names(registry)
        self._contested = self._find_contested(registry, Mount.list_shared)
        self._contested_for_some = self._find_contested(registry, Mount.list_all)
        self._withheld.clear()  # other names may be theirs now
        found: dict[PartKey, Part] = {(part.kind, identify(part)): part for part in registry.parts}
        taken, private = set(found), dict[PartKey, Part]()
        for served in self._list_mounts():
            for lists in reversed(served.mount.list_shared()):
                for part in self._create_parts(served, lists, is_shared=True):
                    found.setdefault((part.kind, identify(part)), part)
            for lists in reversed(served.mount.list_personal()):
                for part in self._create_parts(served, lists, is_shared=False):
                    private.setdefault((part.kind, identify(part)), part)
            if served.maker.has_connect_tool:
                tool = self._create_connect_tool(served, is_listed=True)
                found.setdefault((tool.kind, identify(tool)), tool)
        self._private = frozenset(private).difference(found)
        more = (part for key, part in private.items() if key not in found)
        return [*(part for key, part in found.items() if key not in taken), *more]

    def list_tool_names(self) -> dict[str, dict[str, str]]:
        """Return, for each mount, what its tools are called here → their own names."""
        found: dict[str, dict[str, str]] = {}
        for (mount, kind, original), shown in self._names.items():
            names = found.setdefault(mount.removeprefix(OURS), {})
            if kind == "tools" and len(names) < MAX_TOLD:
                names[shown] = original
        return found

    async def prepare(self, session: Session) -> None:
        """Wait a moment for mounts of which nothing is known, the first time that it is asked for. Raises
        InvalidRequest for a request that came by this server before."""
        path = find_path(session.capabilities)
        if path and (self._own_id() in path or len(path) > MAX_PATH):
            raise InvalidRequest("this server is mounted on itself, perhaps by way of others", {"code": LOOP})
        waiting: list[asyncio.Task[None]] = []
        for served in self._list_shown(session):
            mount, key = served.mount, find_key(served.per, session)
            with contextlib.suppress(MountError):  # it is told at the call
                await mount.note_secrets(key.principal)
            await mount.load_lists(key)
            asked = self._asked.setdefault(mount, set())
            if len(asked) >= MAX_ASKED:
                asked.clear()
            lists, who = mount.find_lists(key), mount.find_audience(key)
            if lists is None or mount.is_stale(key):
                fetching = mount.refresh(key)
                if lists is None and who not in asked:
                    asked.add(who)
                    waiting.append(fetching)
        if waiting:
            await asyncio.wait(waiting, timeout=PATIENCE)

    def view(self, session: Session, registry: Registry) -> Registry:
        self.sessions.note(session, time.monotonic())
        whole, choice = self._find_whole(session, registry), self._find_choice(session.principal)
        return self._reduce(whole, session.principal, choice) if choice is None or choice else whole

    def _find_whole(self, session: Session, registry: Registry) -> Registry:
        """Return what this client is shown who has switched off nothing."""
        views = self._views.setdefault(registry, {})
        own = [served.mount.name for served in self._list_mounts() if served.mount.is_personal(session.principal)]
        who = create_profile(session.capabilities), session.principal if own else "", *own
        found = views.get(who)
        if found is None:
            if len(views) >= MAX_VIEWS:
                del views[next(iter(views))]
            found = views[who] = Registry(self._list_view(session, registry))
        return found

    def drop_choice(self, choice: SwitchedOff | None) -> None:
        """Forget what was shown to people with a choice that nobody has any more."""
        self._reduced.drop(choice)

    def list_served_uris(self, uri: str) -> list[str]:
        return [format_contested(mount, uri) if mount else uri for mount in sorted(self._contested.get(uri, ()))]

    def list_skills(self, session: Session) -> list[dict[str, Any]]:
        found: dict[str, dict[str, Any]] = {}
        for served in self._list_shown(session):
            lists = served.mount.find_lists(find_key(served.per, session))
            if lists is not None and lists.skills:
                is_personal = served.mount.is_personal(session.principal)
                rewriter = UriRewriter(served.mount.name, self._contested_for_some if is_personal else self._contested)
                for entry in served.maker.list_skills(lists, rewriter):
                    found.setdefault(entry["uri"], entry)
        return list(found.values())

    def find_withheld(self, session: Session, registry: Registry, kind: str, key: str) -> WithheldPart | None:
        choice = self._find_choice(session.principal)
        if choice is None or choice:
            part = _find_part(self._find_whole(session, registry), kind, key)
            if part is not None and isinstance(part.relay, MountedRelay) and self.hides(session.principal, part):
                mount = part.relay.mount
                return WithheldPart(mount, part, self._create_refusal(choice, mount), "switched_off")
        for served in self._list_mounts():
            parts, mount = self._list_withheld(served, session), served.mount.name
            part = parts.find(kind, key) or parts.find(kind, restore_contested(mount, key))
            if part is not None:
                return WithheldPart(mount, part, _create_hold(mount), "held")
        return None

    async def check(self, mount: Mount, kind: str, original: str, context: Context) -> None:
        """Look again at a part whose call has waited: what is decided may be another thing by now. Raises ToolError
        where the part is refused."""
        choice, caller = self._find_choice(context.principal), context.caller
        if choice is None or choice.hides(mount.name, kind, original):
            raise self._create_refusal(choice, mount.name).as_decision("switched_off")
        served = next((each for each in self._list_mounts() if each.mount is mount), None)
        if served is None:
            raise CLOSED.create_error().as_decision("closed")
        key = create_key(served.per, context.principal, caller.capabilities, caller.session, caller.scopes)
        is_listed = served.lists(mount.find_lists(key), kind, original)
        if not is_listed and served.lists(mount.find_withheld(key), kind, original):
            raise _create_hold(mount.name).as_decision("held")
        is_held_by_plan = kind == "tools" and served.maker.is_held_by_plan(original)
        if is_held_by_plan and await context.plan.active():
            told = "it is refused while a plan is active: finish planning with PlanMode exit first"
            raise ToolError(told).as_decision("plan")

    def hides(self, principal: str, part: Part) -> bool:
        relay = part.relay
        if not isinstance(relay, MountedRelay):
            return False
        choice = self._find_choice(principal)
        return choice is None or choice.hides(relay.mount, part.kind, relay.original)

    def list_own(self, principal: str, registry: Registry) -> Registry:
        if not self._private:
            return registry
        own = self._own.get(registry)
        if own is None:
            own = self._own[registry] = OwnRegistries(registry, self._private)
        return own.find(principal, self._list_private) or registry

    def _list_private(self, principal: str) -> set[PartKey]:
        """Return what a principal is shown of mounts that have lists for them alone."""
        return {
            (part.kind, identify(part))
            for served in self._list_mounts()
            if served.mount.is_personal(principal)
            for lists in served.mount.list_for(principal)
            for part in self._create_parts(served, lists, is_shared=False)
        }

    def withholds(self, principal: str, template: Resource, uri: str) -> bool:
        relay = template.relay
        if not isinstance(relay, ResourceRelay):
            return False
        theirs = [served for served in self._list_mounts() if served.mount.name == relay.mount]
        return any(
            self._create_withheld(served, lists).has_uri(relay.restore(uri))
            for served in theirs
            for lists in served.mount.list_withheld(principal)
        )

    def end_session(self, session: Session) -> None:
        self.sessions.forget(session)
        for served in self._list_mounts():
            served.mount.end_session(session.place.key)

    def instructions(self, session: Session) -> str:
        told = list[str]()
        for served in self._list_shown(session):
            lists = served.mount.find_lists(find_key(served.per, session))
            if lists is not None and lists.instructions:
                told.append(f"# {served.mount.name}\n{lists.instructions[:MAX_OF_MOUNT]}")
        return "\n\n".join(told)[:MAX_INSTRUCTIONS]

    def _list_shown(self, session: Session) -> list[ServedMount]:
        """Return the mounts that this client's person has not switched off as a whole."""
        choice = self._find_choice(session.principal)
        if choice is None:
            return []
        return [served for served in self._list_mounts() if served.mount.name not in choice.mounts]

    def _reduce(self, whole: Registry, principal: str, choice: SwitchedOff | None) -> Registry:
        """Return a registry without what is switched off. Its parts are the same objects."""

        def create() -> Registry:
            return Registry(part for part in whole.parts if not self.hides(principal, part))

        return self._reduced.find(whole, choice, create)

    def _create_refusal(self, choice: SwitchedOff | None, mount: str) -> MountError:
        if choice is None:
            return MountError("CHOICES_UNREADABLE", UNREADABLE)
        place = self._find_page(mount) or "the first page of this server"
        return MountError("SWITCHED_OFF", f"you have switched it off for yourself: switch it on at {place}")

    def _list_view(self, session: Session, registry: Registry) -> Iterator[Part]:
        shown: set[tuple[str, str]] = set()
        for part in registry.parts:
            if part.relay is None:
                shown.add((part.kind, identify(part)))
                yield part
        for served in self._list_mounts():
            lists = served.mount.find_lists(find_key(served.per, session))
            is_shared = not served.mount.is_personal(session.principal)
            parts = [] if lists is None else [*self._create_parts(served, lists, is_shared=is_shared)]
            if served.maker.offers_connect_tool:  # a call that waits for the lists may come back once they are there
                parts.append(self._create_connect_tool(served, is_listed=lists is None))
            for part in parts:
                if (part.kind, identify(part)) not in shown:
                    shown.add((part.kind, identify(part)))
                    yield part

    def _choose_names(self, registry: Registry) -> Names:
        """Return the names of all parts. What single persons' lists have changes no name that all are shown."""
        names: dict[tuple[str, str, str], str] = {}
        for kind, ours in (("tools", registry.tools), ("prompts", registry.prompts)):
            taken = set(ours)
            for list_some in (Mount.list_shared, Mount.list_all):
                wanted = [
                    MountNames(
                        served.mount.name,
                        served.mount.config.prefix,
                        [
                            original
                            for original in served.list_originals(kind, list_some(served.mount))
                            if (served.mount.name, kind, original) not in names
                        ],
                    )
                    for served in self._list_mounts()
                ]
                if kind == "tools" and list_some == Mount.list_shared:
                    wanted += [served.connect_names for served in self._list_mounts() if served.maker.has_connect_tool]
                for (mount, original), shown in choose_names(wanted, taken).items():
                    names[mount, kind, original] = shown
                taken |= set(names.values())
        return names

    def _list_withheld(self, served: ServedMount, session: Session) -> WithheldParts:
        """Return what of a mount this client is not served, under the names that it has or would get."""
        lists = served.mount.find_withheld(find_key(served.per, session))
        return WithheldParts() if lists is None else self._create_withheld(served, lists)

    def _create_withheld(self, served: ServedMount, lists: MountLists) -> WithheldParts:
        known = self._withheld.setdefault(served.mount.name, {})
        found = known.get(id(lists))
        if found is None or found[0] is not lists:
            if len(known) >= MAX_WITHHELD:
                known.clear()
            name, rewriter = partial(self._name_withheld, served), UriRewriter(served.mount.name, {})
            found = known[id(lists)] = lists, WithheldParts(served.maker.create_parts(lists, name, rewriter))
        return found[1]

    def _name_withheld(self, served: ServedMount, kind: str, original: str) -> str:
        mount = served.mount
        known = self._names.get((mount.name, kind, original))
        if known is not None:
            return known
        return choose_names([MountNames(mount.name, mount.config.prefix, [original])])[mount.name, original]

    def _find_contested(self, registry: Registry, list_some: Callable[[Mount], Sequence[MountLists]]) -> Contested:
        """Return the URIs of these lists that can't be served bare. Ours stay as they are, those that our templates
        match, too."""
        claims = {served.mount.name: served.list_uris(list_some(served.mount)) for served in self._list_mounts()}
        ours = {uri for uris in claims.values() for uri in uris if registry.resource(uri) is not None}
        return find_contested({**claims, "": [*registry.resources, *registry.templates, *ours]})

    def _create_connect_tool(self, served: ServedMount, *, is_listed: bool) -> Tool:
        shown = self._names[served.connect_names.mount, "tools", CONNECT]
        return served.maker.create_connect_tool(shown, is_listed=is_listed)

    def _create_parts(self, served: ServedMount, lists: MountLists, *, is_shared: bool) -> Iterator[Part]:
        name = served.mount.name
        rewriter = UriRewriter(name, self._contested if is_shared else self._contested_for_some)
        return served.maker.create_parts(lists, lambda kind, original: self._names[name, kind, original], rewriter)


def _create_hold(mount: str) -> MountError:
    decides = f"an operator decides with toolgate mount review {mount}"
    return MountError("HELD", f"it is not approved as it is now: {decides}")


def _find_part(registry: Registry, kind: str, key: str) -> Part | None:
    """Return a part by its name or a URI, or None."""
    if kind == "resources":
        found = registry.resource(key)
        return None if found is None else found[0]
    return registry.tools.get(key) if kind == "tools" else registry.prompts.get(key)


def find_key(per: str, session: Session) -> SessionKey:
    """Return the key of the conversation for a session of ours."""
    return create_key(per, session.principal, session.capabilities, session.place.key, session.scopes)
