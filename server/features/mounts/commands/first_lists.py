"""Show what a new mount lists, and have a person approve it (`toolgate mount add`)."""

import asyncio
import sys
from collections.abc import Callable, Coroutine, Sequence
from contextlib import aclosing, nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from toolgate.server.app.features import open_store
from toolgate.server.base.errors import UsageError
from toolgate.server.cli.commands.store_command import refuse_other_owner
from toolgate.server.cli.terminal.output import format_count
from toolgate.server.cli.terminal.style import is_terminal
from toolgate.server.config.load import Config
from toolgate.server.features.mounts.commands.review import ask, find_other_tools, tell_servers
from toolgate.server.features.mounts.commands.trial import MountTrial, describe_trial, try_mounts
from toolgate.server.features.mounts.config.mount_config import MountConfig
from toolgate.server.features.mounts.config.table import read_current_mounts
from toolgate.server.features.mounts.mount.profile import create_profile
from toolgate.server.features.mounts.pins import rows
from toolgate.server.features.mounts.pins.definitions import ItemDefinition, list_definitions
from toolgate.server.features.mounts.pins.difference import format_definition, show_unseen
from toolgate.server.features.mounts.pins.gate import digest_server
from toolgate.server.features.mounts.pins.marks import find_marks
from toolgate.server.state import flags, lock
from toolgate.server.state.store import Store
from toolgate.tools.api.errors import ToolError

if TYPE_CHECKING:
    from toolgate.server.state.store import Connection

T = TypeVar("T")

ALL = create_profile(  # of a client that can all
    {
        "elicitation": {"form": {}, "url": {}},
        "sampling": {},
        "roots": {},
        "extensions": {"io.modelcontextprotocol/ui": {"mimeTypes": ["text/html;profile=mcp-app"]}},
    }
)
TAKEN = "the first lists that a running server is told are taken as your word"
MAX_SHOWN = 100  # items that are named
MAX_WORDS = 80  # characters of a description


class FirstLists:
    """The first lists of one mount. While they are not approved, running servers hold all of it."""

    def __init__(self, config: Config, mount: MountConfig) -> None:
        self._config = config
        self._mount = mount
        self._server = digest_server(mount)
        self._has_begun = False

    def begin(self) -> None:
        """Note that a person is to see the lists, before any server takes them."""

        def note(store: Store, connection: "Connection") -> None:
            store.set_flag(flags.MOUNT_BASELINE, self._mount.name, True)
            rows.take_baseline(connection, self._mount.name, self._server, (), store.now(), seen=True)

        try:
            refuse_other_owner(self._config)
            self._run(note)
            self._has_begun = True
        except (UsageError, ToolError) as error:
            print(f"toolgate: mount add: {error}; {TAKEN}", file=sys.stderr)

    def give_up(self) -> None:
        """Have the first lists be taken as the operator's word, if nothing is known of them."""
        if self._has_begun:
            self._run(lambda _, connection: rows.forget_baseline(connection, self._mount.name, self._server))

    def show(self) -> None:
        """Print what the mount lists, and have it approved: by the person at a terminal, elsewhere at once."""
        try:
            if self._has_begun:
                self._show()
        except ToolError as error:  # the mount is added all the same
            print(f"toolgate: mount add: {error}; toolgate mount review {self._mount.name} decides", file=sys.stderr)

    def _show(self) -> None:
        trial, items = self._fetch()
        if trial.code:
            print(f"{trial.name}: {trial.code}: {show_unseen(trial.error)}")
            print(f"note: {TAKEN}")
            self.give_up()
            return
        print(f"{trial.name}: {describe_trial(trial)}")
        self._print(items)
        is_approved = self._is_approved(len(items))
        decide = rows.approve if is_approved else rows.hold

        def write(store: Store, connection: "Connection") -> None:
            decide(connection, self._mount.name, self._server, items, store.now())

        self._run(write)
        tell_servers(self._config, self._mount.name)
        if is_approved and items:
            print(f"Approved {format_count(len(items), 'item')} of {trial.name}")
        elif items:
            print(f"Nothing is approved yet: toolgate mount review {trial.name} decides")

    def _fetch(self) -> tuple[MountTrial, Sequence[ItemDefinition]]:
        """Return how the mount did, and what it lists for clients that can nothing and for those that can all."""
        (trial,) = asyncio.run(try_mounts(self._config, [self._mount]))
        trials = [trial] if trial.code else [trial, *asyncio.run(try_mounts(self._config, [self._mount], ALL))]
        found = {
            (item.kind, item.digest): item for each in trials for item in list_definitions(each.lists, each.hidden)
        }
        return trial, list(found.values())

    def _print(self, items: Sequence[ItemDefinition]) -> None:
        mounts = read_current_mounts(self._config)
        others = self._read(lambda store: find_other_tools(store, mounts, self._mount.name))
        for item in items[:MAX_SHOWN]:
            title = f"{item.kind} {show_unseen(item.name)}".rstrip()
            print(f"  {title}  {_describe(item)}".rstrip())
            for mark in find_marks(item.data, others):
                print(f"    ! it {mark}")
        if len(items) > MAX_SHOWN:
            print(f"  and {len(items) - MAX_SHOWN} more")

    def _is_approved(self, count: int) -> bool:
        if not count or not (is_terminal(sys.stdin) and is_terminal(sys.stdout)):
            return True
        return ask(f"Approve {format_count(count, 'item')}? [y]es, [n]o: ").startswith("y")

    def _run(self, work: "Callable[[Store, Connection], T]") -> T:
        """Return the result of a transaction. Raises StateError."""
        return self._read(lambda store: store.transact(partial(work, store), alone="mounts"))

    def _read(self, work: Callable[[Store], Coroutine[Any, Any, T]]) -> T:
        async def run() -> T:
            async with aclosing(open_store(self._config)) as store:
                return await work(store)

        state = self._config.state
        with lock.hold_shared(state) if state.exists() else nullcontext():
            return asyncio.run(run())


def _describe(item: ItemDefinition) -> str:
    """Return the first words of a description."""
    for line in format_definition(item.data):
        if item.kind == "instructions":
            return line[:MAX_WORDS]
        path, _, text = line.partition(": ")
        if path == "description":
            return text[:MAX_WORDS]
    return ""
