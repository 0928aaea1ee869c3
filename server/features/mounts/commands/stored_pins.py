"""Read what is held of the mounts, and what a person should look at twice, from the state: no server has to run."""

import asyncio
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import aclosing, nullcontext
from typing import TYPE_CHECKING

from toolgate.server.app.builtin_tools import TOOLS
from toolgate.server.app.features import open_store
from toolgate.server.base.errors import UsageError
from toolgate.server.cli.commands.store_command import refuse_other_owner
from toolgate.server.config.load import Config
from toolgate.server.features.mounts.config.mount_config import MountConfig
from toolgate.server.features.mounts.lists.rows import remove_mount
from toolgate.server.features.mounts.pins import rows
from toolgate.server.features.mounts.pins.difference import show_unseen
from toolgate.server.features.mounts.pins.gate import digest_server
from toolgate.server.features.mounts.pins.marks import find_marks, is_distinct
from toolgate.server.features.mounts.pins.rows import StoredPin
from toolgate.server.state import flags, lock
from toolgate.tools.api.errors import ToolError

if TYPE_CHECKING:
    from toolgate.server.state.store import Connection

MAX_MARKED = 20  # items of one mount

Pins = Mapping[str, Sequence[StoredPin]]  # by the name of the mount


async def fetch_pins(config: Config, mounts: Sequence[MountConfig]) -> Pins:
    """Return the pins of the servers that these mounts are now. What can't be read is left out, and the reason is
    printed."""
    names = {mount.name: digest_server(mount) for mount in mounts}

    def read(connection: "Connection", known: Sequence[str]) -> Pins:
        return {name: [pin for pin in rows.list_pins(connection, name) if pin.server == names[name]] for name in known}

    try:
        async with aclosing(open_store(config, upgrades=False)) as store:
            known = [] if store.is_empty() else [name for name in names if store.has_flag(flags.MOUNT_BASELINE, name)]
            return await store.read(lambda connection: read(connection, known)) if known else {}
    except ToolError as error:  # the rest is shown without it
        print(f"what is held of the mounts is not known: {error}", file=sys.stderr)
        return {}


def forget_pins(config: Config, name: str) -> None:
    """Remove what was decided of a mount that is no more, and what people were shown of it: another one of its name has
    its own first lists."""

    async def forget() -> None:
        async with aclosing(open_store(config)) as store:

            def write(connection: "Connection") -> None:
                rows.forget_mount(connection, name)
                remove_mount(connection, name)
                for kind in (flags.MOUNT_BASELINE, flags.MOUNT_REFUSALS):
                    store.set_flag(kind, name, False)

            if not store.is_empty():
                await store.transact(write, alone="mounts")

    try:
        refuse_other_owner(config)
        with lock.hold_shared(config.state) if config.state.exists() else nullcontext():
            asyncio.run(forget())
    except (ToolError, UsageError) as error:
        print(f"toolgate: mount remove: what was approved of {name} stays: {error}", file=sys.stderr)


def count_held(pins: Pins) -> dict[str, int]:
    """Return how many forms of each mount wait for a review; a mount without any is left out."""
    counts = {name: sum(pin.standing == "held" for pin in those) for name, those in pins.items()}
    return {name: count for name, count in counts.items() if count}


def describe_pins(mount: MountConfig, pins: Pins, prefixes: Mapping[str, str]) -> Iterator[str]:
    """Yield lines about one mount: what is held, and the marks of what is served."""
    held = count_held(pins).get(mount.name)
    if held:
        yield f"{mount.name}: held: {held}; toolgate mount review {mount.name} shows what has changed"
    served = {(pin.kind, pin.name): pin for pin in pins.get(mount.name, ()) if pin.standing == "approved"}
    others = list_other_tools((pin for name, those in pins.items() if name != mount.name for pin in those), prefixes)
    marked = [(pin, mark) for pin in served.values() for mark in find_marks(pin.definition, others)]
    for pin, mark in marked[:MAX_MARKED]:
        yield f"{mount.name}: {pin.kind} {show_unseen(pin.name)} {mark}"


def list_other_tools(pins: Iterable[StoredPin], prefixes: Mapping[str, str]) -> set[str]:
    """Return names of our tools and of those in `pins` that no description has by chance. `prefixes`: of each mount."""
    names = defaultdict[str, set[str]](set)
    for pin in pins:
        if pin.kind == "tool":
            names[pin.mount].add(pin.name)
    found = {shown for mount, those in names.items() for each in those for shown in (each, prefixes[mount] + each)}
    return {each for each in {*found, *(tool.name for tool in TOOLS)} if is_distinct(each)}
