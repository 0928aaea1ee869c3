"""A workspace at a node does what one in this process does: the same tests pass."""

import contextlib
import inspect
import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tests.server.node.nodes import NodeProcess, remote_caller, remote_workspace, running_node
from tests.tools import shell_commands
from tests.tools.builtin import test_background, test_bash
from tests.tools.workspace import test_files, test_processes, test_programs, test_workspace

LOCAL = {  # what only the process has that runs the commands: its environment, its spool, its end, its descriptors
    "test_a_users_own_bash_env_still_works",
    "test_the_working_directory_persists_though_a_command_removes_what_records_it",
    "test_output_up_to_the_limit_is_whole_in_characters_not_bytes",
    "test_what_is_returned_of_a_run_does_not_change",
    "test_a_cancelled_execution_leaves_nothing",
    "test_a_cancelled_call_that_repeats_a_key_does_not_disturb_the_start",
    "test_a_call_in_flight_is_told_that_the_server_stopped",
    "test_fifty_commands_cost_no_descriptor",
    "test_a_command_may_kill_its_supervisor_and_does_not_outlive_it",
}
UNSANDBOXED = {  # what they look at is not there from outside of a sandbox
    "test_a_cancelled_command_is_gone_with_its_tree_before_the_call_ends": "the ids of its processes",
    "test_a_timeout_ends_the_whole_tree_daemons_included": "the ids of its processes",
    "test_a_command_in_a_removed_workspace_is_refused_with_a_reason": "bubblewrap gives the reason in its own words",
}
INSIDE = ("zygote", "supervisor")  # in the names of tests of how commands are started
LIMITS = ("--limit", "commands=64", "--limit", "background=64")  # as the tests expect


def shared_tests(module: ModuleType) -> Iterator[Any]:
    for name, function in inspect.getmembers(module, inspect.isfunction):
        uses = {"on_workspace", "on_caller"} & set(inspect.getsource(function).replace("(", " ").split())
        plain = list(inspect.signature(function).parameters) == ["tmp_path"]
        if (
            name.startswith("test_")
            and uses
            and plain
            and name not in LOCAL
            and not any(map(name.__contains__, INSIDE))
        ):
            yield function


@pytest.fixture(scope="module")
def node(request: pytest.FixtureRequest) -> Iterator[NodeProcess]:
    first = 60_000 + os.getpid() % 16 * 300  # no server's default, nor another worker's; each test has a user
    users = [] if request.param == "none" else ["--sandbox-uids", f"{first}-{first + 299}"]
    with tempfile.TemporaryDirectory(prefix="toolgate-node-") as folder:
        os.chmod(folder, 0o711)  # other users have to pass
        with running_node(Path(folder), "--sandbox", request.param, *users, *LIMITS) as node:
            yield node


SLOW = {  # they take seconds, and `make test` has them in process
    "test_a_timeout_ends_the_whole_tree_daemons_included",
    "test_a_cancelled_command_is_gone_with_its_tree_before_the_call_ends",
    "test_how_a_command_ended_is_known_as_soon_as_it_is_waited_for",
    "test_eight_commands_at_once_overlap",
    "test_output_streams_as_progress_that_grows_and_is_not_too_much",
}
MODULES = (test_workspace, test_files, test_bash, test_background, test_processes, test_programs)
LEVELS = ("none", "bwrap", "uid")


def list_cases() -> Iterator[Any]:
    """Yield each level with each of the tests; only those without a sandbox are quick enough for `make test`."""
    for level in LEVELS:
        for test in (test for module in MODULES for test in shared_tests(module)):
            if level != "bwrap" or test.__name__ not in UNSANDBOXED:
                name = f"{test.__name__.removeprefix('test_')}-{level}"
                is_quick = level == "none" and test.__name__ not in SLOW
                yield pytest.param(level, test, id=name, marks=() if is_quick else pytest.mark.soak)


@pytest.mark.parametrize(("node", "test"), [*list_cases()], indirect=["node"], scope="module")
def test_through_a_node(
    test: Callable[[Path], None], node: NodeProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def workspace(_folder: Path, *rest: Any) -> contextlib.AbstractAsyncContextManager[Any]:
        return remote_workspace(node, *rest)

    def caller(_folder: Path, _environment: Any) -> contextlib.AbstractAsyncContextManager[Any]:
        return remote_caller(node)

    monkeypatch.setattr(shell_commands, "workspace", workspace)
    monkeypatch.setattr(shell_commands, "caller", caller)
    test(tmp_path)
