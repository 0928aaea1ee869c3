"""Decide what of a mount's lists is served: the one function that lists, calls, pages and events ask.

`on_change` says what becomes of a form that is new:

    hold    it is served once a person has approved it (the default over HTTP)
    warn    it is served, and the log says so (over stdio, where who upgrades a server is its user)
    allow   it is served

What a person has refused is served by none of them. The first lists of a mount that somebody wrote into the config file
are the operator's word. For a day, so is what another kind of client is shown first: a server may have more for one
that can do more. After that, and where a person has seen the first lists, it is new.
"""

import hashlib
import logging
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

import msgspec
from msgspec.structs import replace

from toolgate.server.base.principals.name_patterns import is_chosen
from toolgate.server.features.mounts.config.mount_config import MountConfig, OnChange
from toolgate.server.features.mounts.lists.list_store import MAX_PERSONAL, MAX_PROFILES, Items, MountLists
from toolgate.server.features.mounts.pins.book import PinBook, PinSet
from toolgate.server.features.mounts.pins.definitions import (
    FIELDS,
    ItemDefinition,
    Kind,
    define,
    define_item,
    has_pin,
    list_definitions,
)
from toolgate.server.state import flags

FIRST_DAY = 86_400.0  # seconds after the first lists in which those for other kinds of clients are taken, too
MAX_CACHED = MAX_PROFILES + MAX_PERSONAL  # lists
MAX_LISTED = 1_000  # kinds of clients: the first lists of further ones are no operator's word
MAX_TOLD = 10  # names in a line of the log
MAX_NAME = 64  # characters of each

log = logging.getLogger("toolgate.mounts")


class PinGate:
    """The pins of one mount. `list_all()` returns its lists by the profile of the client. `mode`: what becomes of a
    form that is new."""

    def __init__(
        self, config: MountConfig, mode: OnChange, book: PinBook, list_all: Callable[[], Mapping[str, MountLists]]
    ) -> None:
        self._mode = mode
        self._config = config
        self._book = book
        self._list_all = list_all
        self._server = digest_server(config)
        self._listed: set[str] = set()  # profiles whose first lists are no news any more
        self._cache: dict[int, tuple[MountLists, MountLists, MountLists]] = {}  # id → the lists, served and withheld
        self._counts: tuple[int, int] | None = None  # of the tools that are served, and of what is withheld
        self._taken_at: float | None = None  # when the first lists were taken here
        self._hidden: dict[str, Collection[str]] = {}  # by profile: secrets that stay out of what is kept

    def begin(self, hidden: Mapping[str, Collection[str]] | None = None) -> None:
        """Take what was listed before the start, and by profile what is `hidden` of it. A mount that holds nothing
        costs no look at the state."""
        self._hidden.update(hidden or {})
        if self._mode == "hold" or not self._book.may_know(flags.MOUNT_BASELINE, self._config.name):
            self.renew()
        else:
            self._listed.update(self._list_all())
            if self._needs_book:
                self._book.load_soon(self._config.name)

    def renew(self) -> None:
        """Look at all lists again, since others may count than before."""
        self._forget()
        known = self._book.find(self._config.name, self._server)
        if known is not None and self._taken_at not in (None, known.taken_at):
            self._taken_at = None  # another process was first: ours are those for another kind of client
            self._listed.clear()
        seen, listed = set[int](), dict(self._list_all())
        self._hidden = {profile: hidden for profile, hidden in self._hidden.items() if profile in listed}
        by_lists = defaultdict[int, set[str]](set)  # equal lists may have been fetched with several secrets
        for profile, hidden in self._hidden.items():
            by_lists[id(listed[profile])].update(hidden)
        for profile, lists in listed.items():
            if id(lists) in seen:  # those of another person
                self._listed.add(profile)
            else:
                seen.add(id(lists))
                self.note(profile, lists, by_lists[id(lists)])

    def note(self, profile: str, lists: MountLists, hidden: Collection[str] = ()) -> None:
        """Take what is listed for clients of a profile, before anybody is shown it. What is kept of it, and told in the
        log, has no `hidden` texts: secrets that the mounted server repeats."""
        self._counts = None
        self._hidden.pop(profile, None)
        if hidden:
            self._hidden[profile] = hidden
        if self._mode == "allow":
            return
        if not self._book.is_loaded(self._config.name):
            self._book.load_soon(self._config.name)  # it calls `renew`
            return
        is_first = profile not in self._listed and len(self._listed) < MAX_LISTED
        if is_first:
            self._listed.add(profile)
        items = list(list_definitions(lists, hidden))
        known = self._book.find(self._config.name, self._server)
        if known is None:
            self._take_baseline(items)
        else:
            self._judge(known, items, is_first=is_first)

    def select(self, lists: MountLists) -> MountLists:
        """Return what of the lists is served."""
        return self._split(lists)[0]

    def withhold(self, lists: MountLists) -> MountLists:
        """Return what of the lists is not served."""
        return self._split(lists)[1]

    def count_tools(self) -> int:
        """Return how many tools are served, to whomever."""
        return self._count()[0]

    def count_withheld(self) -> int:
        """Return how many items are listed and not served."""
        return self._count()[1]

    @property
    def _needs_book(self) -> bool:
        """Whether nothing may be served before the pins are known."""
        return self._mode == "hold" or self._book.may_know(flags.MOUNT_REFUSALS, self._config.name)

    def _forget(self) -> None:
        self._cache.clear()
        self._counts = None

    def _count(self) -> tuple[int, int]:
        if self._counts is None:
            splits = [self._split(lists) for lists in self._list_distinct()]
            tools = {name for served, _ in splits for tool in served.tools if isinstance(name := tool.get("name"), str)}
            names = {each for _, withheld in splits for each in self._list_names(withheld)}
            self._counts = len(tools), len(names)
        return self._counts

    def _list_distinct(self) -> Iterable[MountLists]:
        return {id(lists): lists for lists in self._list_all().values()}.values()

    def _list_names(self, withheld: MountLists) -> Iterable[tuple[Kind, str]]:
        for kind, field, named in FIELDS:
            for item in getattr(withheld, field):
                if is_chosen(item[named], self._config.tools):
                    yield kind, item[named]
        if withheld.instructions:
            yield "instructions", ""

    def _split(self, lists: MountLists) -> tuple[MountLists, MountLists]:
        cached = self._cache.get(id(lists))
        if cached is not None and cached[0] is lists:
            return cached[1:]
        if not self._book.is_loaded(self._config.name):
            nothing = replace(lists, **{field: [] for _, field, _ in FIELDS}, instructions="")
            return (nothing, lists) if self._needs_book else (lists, nothing)
        known = self._book.find(self._config.name, self._server)
        served: dict[str, Any] = {}
        withheld: dict[str, Any] = {}
        for kind, field, named in FIELDS:
            served[field], withheld[field] = self._split_items(known, kind, named, getattr(lists, field))
        is_served = self._serves(known, define("instructions", "", lists.instructions))
        served["instructions"], withheld["instructions"] = (
            (lists.instructions, "") if is_served else ("", lists.instructions)
        )
        if len(self._cache) >= MAX_CACHED:
            listed = set(map(id, self._list_distinct()))
            self._cache = {name: each for name, each in self._cache.items() if name in listed}
        split = lists, replace(lists, **served), replace(lists, **withheld)
        self._cache[id(lists)] = split
        return split[1:]

    def _split_items(self, known: PinSet | None, kind: Kind, named: str, items: Items) -> tuple[Items, Items]:
        served: Items = []
        withheld: Items = []
        for item in items:
            is_free = not has_pin(kind, item.get(named))
            is_served = is_free or self._serves(known, define_item(kind, named, item))
            (served if is_served else withheld).append(item)
        return served, withheld

    def _serves(self, known: PinSet | None, item: ItemDefinition | None) -> bool:
        if item is None:
            return False
        standing = known.find(item) if known is not None else None
        return standing == "approved" if self._mode == "hold" else standing != "refused"

    def _take_baseline(self, items: Sequence[ItemDefinition]) -> None:
        self._forget()
        self._taken_at = self._book.take_baseline(self._config.name, self._server, items).taken_at
        log.info(
            "mount %s: its first lists (%d items) are taken as your word; toolgate mount review shows what changes",
            self._config.name,
            len(items),
        )

    def _judge(self, known: PinSet, items: Iterable[ItemDefinition], *, is_first: bool) -> None:
        name, server = self._config.name, self._server
        takes_more = is_first and not known.seen and self._book.now() < known.taken_at + FIRST_DAY
        more: list[ItemDefinition] = []
        changed: list[ItemDefinition] = []
        for item in items:
            standing = known.find(item)
            if standing is None and takes_more and not known.has(item):
                more.append(item)
            elif self._is_chosen(item) and (standing is None or (standing == "held" and self._mode == "warn")):
                changed.append(item)
        if more or changed:
            self._forget()
        if more:
            self._book.approve(name, server, more)
            log.info("mount %s: %s: taken as your word, for another kind of client", name, _name_all(more))
        if changed and self._mode == "warn":
            self._book.approve(name, server, changed)
            log.warning("mount %s: new or changed since it was approved: %s", name, _name_all(changed))
        elif changed:
            self._book.hold(name, server, changed)
            log.warning(
                "mount %s: new or changed, and held until toolgate mount review %s: %s", name, name, _name_all(changed)
            )

    def _is_chosen(self, item: ItemDefinition) -> bool:
        return item.kind == "instructions" or is_chosen(item.name, self._config.tools)


def digest_server(config: MountConfig) -> str:
    """Return what names the server behind a mount: its command or URL, without what may be a key or differ between
    machines."""
    place = (config.command, config.args, config.url.partition("?")[0])
    return hashlib.sha256(msgspec.json.encode(place)).hexdigest()


def _name_all(items: Sequence[ItemDefinition]) -> str:
    """Return the items in a line of the log."""
    named = [f"{item.kind} {item.name[:MAX_NAME]!r}" if item.name else item.kind for item in items[:MAX_TOLD]]
    left = len(items) - len(named)
    return ", ".join(named) + (f" and {left} more" if left else "")
