"""Show what a mounted server has changed since it was approved, and decide (`toolgate mount review`)."""

import signal
import sys
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec

from toolgate.server.base.errors import UsageError
from toolgate.server.base.text import suggest
from toolgate.server.cli.commands.store_command import CommandError, with_store
from toolgate.server.cli.terminal.output import format_count, print_json_line
from toolgate.server.cli.terminal.style import is_terminal
from toolgate.server.config.load import Config
from toolgate.server.features.mounts.commands.stored_pins import list_other_tools
from toolgate.server.features.mounts.commands.wishes import wish_and_wait
from toolgate.server.features.mounts.config.table import MountList, read_own_mounts
from toolgate.server.features.mounts.control import MountControl
from toolgate.server.features.mounts.pins import rows
from toolgate.server.features.mounts.pins.difference import format_definition, format_difference, show_unseen
from toolgate.server.features.mounts.pins.marks import find_marks
from toolgate.server.features.mounts.pins.outlines import read_outline
from toolgate.server.features.mounts.pins.rows import Standing, StoredPin
from toolgate.server.state import flags
from toolgate.server.state.store import Store

if TYPE_CHECKING:
    from toolgate.server.state.store import Connection

MIN_DIGEST = 8  # characters of a digest that name a form
MAX_LINES = 200  # of one difference
ItemKey = tuple[str, str, str]  # the server, the kind and the name
DECISIONS: Mapping[str, Standing | None] = {"y": "approved", "n": "refused", "": None, "s": None}


class HeldItem(msgspec.Struct, frozen=True):
    """One form that waits, or was refused, what was approved before it, and its marks."""

    pin: StoredPin
    before: StoredPin | None
    marks: Sequence[str]

    @property
    def title(self) -> str:
        """Return what it is, on a line."""
        name = f" {show_unseen(self.pin.name)}" if self.pin.name else ""
        state = "is new" if self.before is None else "has changed"
        return f"{self.pin.kind}{name} {state} ({self.pin.digest[:MIN_DIGEST]})"

    def list_lines(self) -> list[str]:
        """Return the difference, or all of what is new."""
        if self.before is not None:
            return format_difference(self.before.definition, self.pin.definition)
        return [f"+ {line}" for line in format_definition(self.pin.definition)]


@with_store()
async def review_mount(
    store: Store,
    config: Config,
    *,
    name: str,
    tools: Sequence[str] = (),
    approve: bool = False,
    refuse: bool = False,
    json: bool = False,
) -> None:
    """Show what is held, and decide: by the flags, or by asking at a terminal."""
    found = read_own_mounts(config)
    check_name(config, found, name, "mount review")
    if approve and refuse:
        raise UsageError("mount review: give one of --approve and --refuse")
    pins = [] if store.is_empty() else await store.read(partial(rows.list_pins, mount=name))
    others = await find_other_tools(store, found, name)
    chosen = choose_items(pins, find_prefix(found, name), tools, approve=approve, refuse=refuse)
    approved = group_approved(pins)
    items = [create_item(pin, approved, others) for pin in chosen]
    if json:
        print_json_line({"name": name, "items": [_to_json(item) for item in items]})
    elif not items:
        print(f"{name}: nothing is held")
    decided: dict[Standing, list[StoredPin]] = {"approved": [], "refused": []}
    for item in items:
        if not json:
            print_item(item)
        standing = _decide(item, approve=approve, refuse=refuse, asks=not json)
        if standing is not None:
            decided[standing].append(item.pin)
    await _write(store, name, decided)
    if any(decided.values()):
        tell_servers(config, name)
    if not json:
        for standing, those in decided.items():
            if those:
                print(f"{standing.capitalize()} {format_count(len(those), 'item')} of {name}")


def check_name(config: Config, found: MountList, name: str, command: str) -> None:
    """Raise UsageError for a mount that the config file does not have."""
    known = [mount.name for mount in found.mounts] + [fault.name for fault in found.faults]
    if name not in known:
        raise UsageError(f"{command}: {config.config_path} has no mount {name!r}{suggest(name, known)}")


def find_prefix(found: MountList, name: str) -> str:
    return next((mount.prefix for mount in found.mounts if mount.name == name), "")


def choose_items(
    pins: Sequence[StoredPin], prefix: str, words: Sequence[str], *, approve: bool, refuse: bool
) -> list[StoredPin]:
    """Return the forms that the words name, by default all that are held. What was decided can be decided otherwise by
    its name: the newest form of it. Raises CommandError for a word that names none."""
    if not words:
        return [pin for pin in pins if pin.standing == "held"]
    chosen: dict[tuple[str, str, str], StoredPin] = {}
    for word in words:
        named = [pin for pin in pins if _is_named(pin, word, prefix)]
        open_ones = [pin for pin in named if pin.standing == "held"]
        if not open_ones and approve:
            open_ones = [pin for pin in named if pin.standing == "refused"]
        if not open_ones and refuse:
            open_ones = named[-1:]
        if not open_ones:
            raise CommandError(f"mount review: nothing that is held is called {word!r}")
        chosen.update({(pin.server, pin.kind, pin.digest): pin for pin in open_ones})
    return list(chosen.values())


def group_approved(pins: Sequence[StoredPin]) -> Mapping[ItemKey, list[StoredPin]]:
    """Return the approved forms of each item, the oldest first."""
    found = defaultdict[ItemKey, list[StoredPin]](list)
    for pin in pins:
        if pin.standing == "approved":
            found[pin.server, pin.kind, pin.name].append(pin)
    return found


def create_item(pin: StoredPin, approved: Mapping[ItemKey, Sequence[StoredPin]], others: Collection[str]) -> HeldItem:
    """Return a form with what was approved before it."""
    same = approved.get((pin.server, pin.kind, pin.name), ())
    before = next((each for each in reversed(same) if each.digest != pin.digest), None)
    return HeldItem(pin, before, find_marks(pin.definition, others))


async def find_other_tools(store: Store, found: MountList, name: str) -> set[str]:
    """Return names of tools of ours and of other mounts that no description has by chance."""
    prefixes = {mount.name: mount.prefix for mount in found.mounts if mount.name != name}
    pins = list[StoredPin]()
    if prefixes and not store.is_empty():
        pins = await store.read(partial(rows.list_standings, mounts=sorted(prefixes)))
    return list_other_tools(pins, prefixes)


def print_item(item: HeldItem) -> None:
    """Print what has changed, without a character that a terminal would obey."""
    print(item.title)
    for mark in item.marks:
        print(f"  ! it {mark}")
    lines = item.list_lines()
    for line in lines[:MAX_LINES]:
        print(f"  {line}")
    if len(lines) > MAX_LINES:
        print(f"  … and {len(lines) - MAX_LINES} lines more: --json has all of them")


def tell_servers(config: Config, name: str) -> None:
    """Have the running servers of the state follow. One that starts later reads the state."""
    if config.state.exists():
        wish_and_wait(MountControl(config.state), "pins", name)


def ask(prompt: str) -> str:
    """Return what a person types, "" at the end of the input."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # the loop's would wait for the end of the line
    try:
        return input(prompt).strip().lower()
    except EOFError:
        print()
        return ""
    finally:
        signal.signal(signal.SIGINT, before)


def _decide(item: HeldItem, *, approve: bool, refuse: bool, asks: bool) -> Standing | None:
    if approve or refuse:
        return "approved" if approve else "refused"
    if not asks or not (is_terminal(sys.stdin) and is_terminal(sys.stdout)):
        return None
    while True:
        word = ask(f"Approve {item.pin.kind} {show_unseen(item.pin.name)}? [y]es, [n]o, keep it out, [s]kip: ")
        if word[:1] in DECISIONS:
            return DECISIONS[word[:1]]


async def _write(store: Store, name: str, decided: Mapping[Standing, Sequence[StoredPin]]) -> None:
    def write(connection: "Connection") -> None:
        for standing, pins in decided.items():
            rows.decide(connection, pins, standing, store.now())
        if decided["refused"]:
            store.set_flag(flags.MOUNT_REFUSALS, name, True)

    if any(decided.values()):
        await store.transact(write, alone="mounts")


def _is_named(pin: StoredPin, word: str, prefix: str) -> bool:
    names = (pin.name, prefix + pin.name) if pin.name else (pin.kind,)
    return word in names or (len(word) >= MIN_DIGEST and pin.digest.startswith(word))


def _to_json(item: HeldItem) -> dict[str, Any]:
    pin, before = item.pin, item.before
    return {
        "kind": pin.kind,
        "name": pin.name,
        "digest": pin.digest,
        "standing": pin.standing,
        "since": pin.seen_at,
        "marks": list(item.marks),
        "before": None if before is None else _decode(before.definition),
        "after": _decode(pin.definition),
    }


def _decode(definition: bytes) -> Any:
    """Return a whole form, or None where it was too large to be kept."""
    return msgspec.json.decode(definition) if definition and read_outline(definition) is None else None
