"""A workspace at a node does what one in this process does: the same tests pass.

All tests of MODULES run at each level, but for those of LOCAL and UNSANDBOXED, which say why not.
"""

import asyncio
import contextlib
import inspect
import itertools
import os
import signal
import tempfile
import time
from collections.abc import Callable, Generator, Iterator
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tests.server.features.nodes.nodes import (
    NodeProcess,
    fake_principal,
    gateway,
    remote_caller,
    remote_workspace,
    running_node,
)
from tests.servers.reserved_users import kept_users
from tests.tools import shell_commands
from tests.tools.builtin import test_background, test_bash, test_editors
from tests.tools.shell_commands import BOUND, living
from tests.tools.workspace import test_workspace
from tests.tools.workspace.commands import test_program_streams, test_programs
from tests.tools.workspace.files import test_files
from tests.tools.workspace.output import test_output_rate, test_spool
from tests.tools.workspace.processes import test_idle_sandboxes, test_processes, test_stopped
from tests.tools.workspace.processes.test_stopped import mark

__all__ = ["mark"]  # the fixture

OWN_ENVIRONMENT = "gives the process an environment"
OWN_SPOOL = "reads or breaks the files of its own spool"
OWN_RUNNER = "asks the runner of commands, or has one of its own"
OWN_PROCESS = "counts this process's descriptors, tasks or children"
OWN_FUNCTIONS = "calls functions of the process, not a workspace"
OWN_LIMITS = "changes limits in this process"
OWN_END = "ends the process that runs the commands: below is the end of a node"
SAME_RUN = "compares what the process holds of a run"
LOCAL = {
    "test_a_closed_runner_follows_no_command_any_more": OWN_RUNNER,
    "test_a_users_own_bash_env_still_works": OWN_ENVIRONMENT,
    "test_an_unusable_environment_is_refused_with_a_reason": OWN_ENVIRONMENT,
    "test_a_persons_own_editor_is_used_unless_it_needs_a_terminal": OWN_ENVIRONMENT,
    "test_editors_are_named_in_a_folder_with_spaces": OWN_SPOOL,
    "test_the_working_directory_persists_though_a_command_removes_what_records_it": OWN_SPOOL,
    "test_output_up_to_the_limit_is_whole_in_characters_not_bytes": OWN_SPOOL,
    "test_a_damaged_count_never_gives_an_id_that_is_there": OWN_SPOOL,
    "test_a_full_disk_does_not_stop_a_command": OWN_SPOOL,
    "test_a_spool_that_can_not_be_is_a_clear_error": OWN_SPOOL,
    "test_commands_run_though_nothing_can_be_written": OWN_SPOOL,
    "test_on_a_full_disk_old_output_makes_room": OWN_SPOOL,
    "test_tasks_of_an_earlier_server_stay_readable_and_unended_ones_are_lost": OWN_SPOOL,
    "test_the_spool_is_private": OWN_SPOOL,
    "test_wrong_file_types_in_a_spool_block_no_command": OWN_SPOOL,
    "test_a_workspace_closes_though_its_spool_can_not_be_opened": OWN_SPOOL,
    "test_ids_are_unique_across_two_servers_on_one_spool_and_go_on_counting": OWN_SPOOL,
    "test_a_command_that_ends_soon_and_prints_little_takes_no_room": OWN_SPOOL,
    "test_output_is_stored_as_soon_as_it_is_large": OWN_SPOOL,
    "test_a_command_that_goes_on_is_stored": OWN_SPOOL,
    "test_records_that_a_killed_server_left_are_removed": OWN_SPOOL,
    "test_a_link_in_place_of_the_records_is_replaced": OWN_SPOOL,
    "test_what_is_left_of_a_spool_stays_when_a_part_of_it_was_removed": OWN_SPOOL,
    "test_two_servers_that_gave_the_same_id_keep_both_outputs": OWN_SPOOL,
    "test_on_a_disk_that_became_read_only_a_command_is_neither_killed_nor_lost": OWN_SPOOL,
    "test_capped_output_is_not_said_to_be_all_of_it": OWN_LIMITS,
    "test_a_reader_of_a_running_command_gets_the_end_so_far": OWN_LIMITS,
    "test_old_tasks_make_room": OWN_LIMITS,
    "test_a_result_waits_for_processes_that_end_soon_after_their_command": OWN_LIMITS,
    "test_what_is_returned_of_a_run_does_not_change": SAME_RUN,
    "test_a_cancelled_execution_leaves_nothing": OWN_PROCESS,
    "test_a_cancelled_call_that_repeats_a_key_does_not_disturb_the_start": OWN_PROCESS,
    "test_a_program_that_is_cancelled_twice_leaves_nothing_behind": OWN_PROCESS,
    "test_closing_leaves_no_process_and_no_descriptor_in_time": OWN_PROCESS,
    "test_depth_costs_no_descriptors": OWN_PROCESS,
    "test_fifty_commands_cost_no_descriptor": OWN_PROCESS,
    "test_past_the_cap_a_command_goes_on_slowly_and_ends_as_it_likes": OWN_PROCESS,
    "test_a_call_in_flight_is_told_that_the_server_stopped": OWN_END,
    "test_killing_the_server_kills_its_commands_and_their_daemons": OWN_END,
    "test_killing_the_server_kills_the_tree": OWN_END,
    "test_the_servers_end_is_the_trees": OWN_END,
    "test_nothing_starts_after_the_close": OWN_END,
    "test_killing_the_server_kills_its_programs": OWN_END,
    "test_programs_end_with_their_workspace_and_cost_no_descriptor": OWN_PROCESS,
    "test_its_environment_is_small_and_exact": OWN_ENVIRONMENT,
    "test_programs_count_as_commands": OWN_LIMITS,
    "test_a_limit_that_a_program_reaches_is_named": OWN_LIMITS,
    "test_programs_end_when_the_workspace_is_over_its_limit": OWN_LIMITS,
    "test_a_supervisor_is_shared_only_by_commands_of_one_owner_with_the_same_limits": OWN_RUNNER,
    "test_a_supervisor_that_dies_as_it_is_woken_leaves_no_timer": OWN_RUNNER,
    "test_a_waiting_supervisor_that_dies_is_replaced": OWN_RUNNER,
    "test_a_zygote_that_died_is_replaced": OWN_RUNNER,
    "test_a_zygote_that_does_not_answer_is_replaced_and_its_command_runs_once": OWN_RUNNER,
    "test_quick_commands_share_a_supervisor": OWN_RUNNER,
    "test_two_people_of_one_folder_have_no_supervisor_in_common": OWN_RUNNER,
    "test_a_command_that_comes_while_its_sandbox_ends_has_a_new_one": OWN_RUNNER,
    "test_a_sandbox_in_which_something_runs_is_not_idle": OWN_RUNNER,
    "test_an_idle_sandbox_ends_after_a_while": OWN_RUNNER,
    "test_of_idle_sandboxes_the_one_that_rested_longest_ends_first": OWN_RUNNER,
    "test_a_link_switched_during_a_read_does_not_reach_the_private_folder": OWN_FUNCTIONS,
    "test_nothing_outside_is_opened_while_a_file_and_a_link_change_places": OWN_FUNCTIONS,
    "test_output_that_is_not_kept_is_read_at_a_part_of_the_rate": OWN_FUNCTIONS,
    "test_the_tools_are_declared_as_the_contract_has_them": OWN_FUNCTIONS,
    "test_while_planning_a_long_command_names_no_tool_that_the_plan_refuses": OWN_FUNCTIONS,
}
IDS = "looks for the ids that its processes have in the sandbox"
UNSANDBOXED = {  # at these levels what they look at is not there
    ("bwrap", "test_a_cancelled_command_is_gone_with_its_tree_before_the_call_ends"): IDS,
    ("bwrap", "test_a_timeout_ends_the_whole_tree_daemons_included"): IDS,
    ("bwrap", "test_closing_ends_a_stubborn_tree"): IDS,
    ("bwrap", "test_a_command_may_kill_its_supervisor_and_does_not_outlive_it"): IDS,
    ("bwrap", "test_a_command_in_a_removed_workspace_is_refused_with_a_reason"): "bubblewrap gives its own reason",
    ("uid", "test_a_program_gets_its_input_and_its_output_is_bounded"): "runs a Python that its user may not enter",
}
LIMITS = ("--limit", "commands=64", "--limit", "background=64")  # as the tests expect
FIXTURES = {"tmp_path", "mark"}  # what a test may take, beside its parameters


def list_tests(module: ModuleType) -> Iterator[Callable[..., None]]:
    for name, function in inspect.getmembers(module, inspect.isfunction):
        if name.startswith("test_") and function.__module__ == module.__name__:
            yield function


def list_calls(test: Callable[..., None]) -> Iterator[tuple[str, Callable[..., None]]]:
    """Yield the test with each choice of its parameters, and a name of the choice."""
    marks = [each for each in getattr(test, "pytestmark", []) if each.name == "parametrize"]
    rows = [[(each.args[0], number, row) for number, row in enumerate(each.args[1])] for each in marks]
    for choice in itertools.product(*rows):
        arguments: dict[str, Any] = {}
        for names, _, row in choice:
            values = row.values if hasattr(row, "values") and hasattr(row, "marks") else row
            if isinstance(names, str):
                arguments[names] = values[0] if values is not row else row
            else:
                arguments.update(zip(names, values, strict=True))
        yield "".join(f"-{number}" for _, number, _ in choice), partial(test, **arguments)


@contextlib.contextmanager
def node_at(level: str, *options: str, host: str | None = None) -> Generator[NodeProcess, None, None]:
    uids = kept_users(300)  # each test has a user
    users = [] if level == "none" else ["--sandbox-uids", f"{uids[0]}-{uids[-1]}"]
    with tempfile.TemporaryDirectory(prefix="toolgate-node-") as folder:
        os.chmod(folder, 0o711)  # other users have to pass
        with running_node(Path(folder), "--sandbox", level, *users, *options, host=host) as node:
            yield node


@pytest.fixture(scope="module")
def node(request: pytest.FixtureRequest) -> Iterator[NodeProcess]:
    level, _, host = request.param.partition(" over TLS at ")
    with node_at(level, *LIMITS, host=host or None) as node:
        yield node


SLOW = {  # they take seconds or much processor time, and `make test` has them in process
    "test_a_timeout_ends_the_whole_tree_daemons_included",
    "test_a_cancelled_command_is_gone_with_its_tree_before_the_call_ends",
    "test_how_a_command_ended_is_known_as_soon_as_it_is_waited_for",
    "test_eight_commands_at_once_overlap",
    "test_output_streams_as_progress_that_grows_and_is_not_too_much",
    "test_more_commands_than_allowed_are_refused_until_one_ends",
    "test_many_commands_start_at_once",
    "test_processes_that_never_stop_forking_are_killed",
    "test_a_command_over_the_systems_limit_of_an_argument_runs_as_any_other",
    "test_ten_megabytes_go_both_ways_and_the_input_ends",
}
MODULES = (
    test_workspace,
    test_files,
    test_bash,
    test_background,
    test_editors,
    test_processes,
    test_programs,
    test_program_streams,
    test_stopped,
    test_spool,
    test_output_rate,
    test_idle_sandboxes,
)
QUICK = {
    module.__name__
    for module in (test_workspace, test_files, test_bash, test_background, test_processes, test_program_streams)
}
LEVELS = ("none", "none over TLS at localhost", "bwrap", "uid")


def list_cases() -> Iterator[Any]:
    """Yield each level with each of the tests; only those without a sandbox are quick enough for `make test`."""
    for level in LEVELS:
        for test in itertools.chain(*map(list_tests, MODULES)):
            if test.__name__ in LOCAL or (level, test.__name__) in UNSANDBOXED:
                continue
            is_quick = level == "none" and test.__module__ in QUICK and test.__name__ not in SLOW
            for choice, call in list_calls(test):
                name = f"{test.__name__.removeprefix('test_')}{choice}-{level.replace(' ', '-')}"
                yield pytest.param(level, call, id=name, marks=() if is_quick and not choice else pytest.mark.soak)


def test_each_test_that_passes_no_node_is_there_and_needs_a_reason() -> None:
    tests = {test.__name__: test for module in MODULES for test in list_tests(module)}
    assert {*LOCAL, *(name for _, name in UNSANDBOXED), *SLOW} <= {*tests}
    for name in {*tests} - {*LOCAL}:
        for _, call in list_calls(tests[name]):
            assert {*inspect.signature(call).parameters} - {*call.keywords} <= FIXTURES, name  # type: ignore[attr-defined]
        opens = {"on_workspace(", "on_caller(", "open_workspace("}
        assert any(map(inspect.getsource(tests[name]).__contains__, opens)), name


def living_in_sandbox(word: str) -> set[int]:
    """Return what lives. The kernel ends the last processes of a sandbox just after the supervisor of a command."""
    until = time.monotonic() + 1.0
    while (pids := living(word)) and time.monotonic() < until:
        time.sleep(0.01)
    return pids


@pytest.mark.parametrize(("node", "call"), [*list_cases()], indirect=["node"], scope="module")
def test_through_a_node(
    call: "partial[None]",
    node: NodeProcess,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
) -> None:
    def workspace(_folder: Path, *rest: Any) -> contextlib.AbstractAsyncContextManager[Any]:
        return remote_workspace(node, *rest)

    def open_workspace(_folder: Path, *_limits: Any) -> contextlib.AbstractAsyncContextManager[Any]:
        return remote_workspace(node)

    def caller(_folder: Path, _environment: Any, _linger: float) -> contextlib.AbstractAsyncContextManager[Any]:
        return remote_caller(node)

    monkeypatch.setattr(shell_commands, "workspace", workspace)
    monkeypatch.setattr(shell_commands, "caller", caller)
    monkeypatch.setattr(test_programs, "open_workspace", open_workspace)
    monkeypatch.setattr(test_stopped, "living", living_in_sandbox)
    names = {*inspect.signature(call).parameters} - {*call.keywords}
    call(**{name: request.getfixturevalue(name) for name in names})


def list_ends() -> Iterator[Any]:
    """Yield each level with each way to stop a supervisor and to end a node. Outside of a sandbox of its own, nothing
    is left of a killed node that could continue a supervisor again and again."""
    ends = {"stopped": signal.SIGTERM, "killed": signal.SIGKILL}
    for level, stop, end in itertools.product(("none", "bwrap", "uid"), test_stopped.WITH_LOOP, ends):
        if end == "stopped" or level == "bwrap" or stop in test_stopped.STOPS:
            yield pytest.param(level, test_stopped.WITH_LOOP[stop], ends[end], id=f"{stop}-{level}-{end}")


@pytest.mark.soak
@pytest.mark.parametrize(("level", "stop", "end"), [*list_ends()])
def test_the_end_of_a_node_is_the_trees_though_its_supervisors_are_stopped(
    level: str, stop: str, end: signal.Signals, mark: str
) -> None:
    async def body(node: NodeProcess) -> None:
        async with gateway(node) as remote:
            mine = remote.get_or_open(fake_principal())
            await mine.start(test_stopped.stopping(stop, mark), background=True)
            await shell_commands.until((mine.root / "stopped").exists)
            assert living(mark)
            node.process.send_signal(end)
            await asyncio.to_thread(node.process.wait, BOUND)
        await shell_commands.until(lambda: not living(mark))

    with node_at(level, "--grace", "0.2") as node:
        asyncio.run(body(node))
