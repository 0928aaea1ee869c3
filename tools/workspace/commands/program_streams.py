"""Start programs whose streams a caller holds, each in a sandbox of its own, within a workspace's limits."""

import logging
import os
import shlex
import time
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

from toolgate.tools.api.errors import ToolError
from toolgate.tools.workspace.commands.environment import CommandEnvironment, ProgramPlace
from toolgate.tools.workspace.commands.limit_checks import LimitChecks
from toolgate.tools.workspace.commands.local_program import LocalProgram
from toolgate.tools.workspace.output.run_record import Run
from toolgate.tools.workspace.processes.command_start import can_run
from toolgate.tools.workspace.processes.process import CommandStartError, Launch
from toolgate.tools.workspace.workspace import ProgramAccess

GIVEN = ("PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "LC_ALL", "LC_CTYPE", "TZ", "TMPDIR")  # of the server's
TEMPORARY = "/tmp"  # noqa: S108  # of the sandbox, or of its user
MAX_NAMED = 200  # characters of a command line in an error
MIN_SECRET = 6  # characters; shorter values are words, and no keys

log = logging.getLogger(__name__)


class ProgramStreams:
    """The programs of a workspace whose streams are held, within its `limits`, for `owner`."""

    def __init__(self, environment: CommandEnvironment, limits: LimitChecks, root: Path, owner: str) -> None:
        self._environment = environment
        self._limits = limits
        self._root = root
        self._owner = owner

    async def open(
        self,
        argv: Sequence[str],
        variables: Mapping[str, str],
        env: Mapping[str, str],
        cwd: Path | None,
        shows: Sequence[Path],
        access: ProgramAccess | None = None,
    ) -> LocalProgram:
        """Start a program. `variables` are those of commands, `env` its own. Raises ToolError."""
        _check_words(argv, env)
        obstacle = None if access is None else access.find_obstacle(self._environment.level)
        if obstacle is not None:
            raise ToolError(obstacle)
        self._limits.check_start(background=False)
        run = Run(0, shlex.join(argv)[:MAX_NAMED], "", time.time())
        program = LocalProgram(run, self._on_end, self._limits.note_input)
        self._limits.programs.add(program)
        try:
            await self._limits.remeasure()
            if self._limits.is_full:
                raise ToolError(f"{self._limits.excess}: remove files first")
            place = ProgramPlace(shows, access, partial(_note_refusal, program, access, env))
            await self._begin(program, argv, variables, env, cwd or self._root, place)
        except BaseException as error:
            self._limits.programs.discard(program)
            if isinstance(error, (CommandStartError, OSError)):
                raise ToolError(f"{argv[0]} was not started: {error}{self._explain_sandbox(argv[0])}") from None
            raise
        return program

    def _explain_sandbox(self, program: str) -> str:
        """Return what to do about a program that the server sees and its sandbox does not, or ""."""
        is_hidden = self._environment.level != "none" and os.path.isabs(program) and can_run(os.fsencode(program))
        return "; the sandbox does not show it: name its folder with --sandbox-paths" if is_hidden else ""

    async def _begin(
        self,
        program: LocalProgram,
        argv: Sequence[str],
        variables: Mapping[str, str],
        env: Mapping[str, str],
        cwd: Path,
        place: ProgramPlace,
    ) -> None:
        where = self._environment
        where.refresh()
        words = [str(cwd / argv[0]) if "/" in argv[0] else argv[0], *argv[1:]]
        own = {**self._choose_variables(variables, place), **env}
        is_apart = where.level == "uid"  # where the principal's commands have the same user
        launch = Launch(words, cwd, cwd, own, self._limits.resources, owner=self._owner, is_apart=is_apart)
        runner = await where.prepare_program(place)
        await program.begin(runner, launch, where.uid)
        self._limits.program_started()

    def _choose_variables(self, variables: Mapping[str, str], place: ProgramPlace) -> dict[str, str]:
        """Return what programs need of the environment of commands, with what their sandbox adds."""
        given = {name: value for name, value in variables.items() if name in GIVEN}
        if self._environment.level != "none":
            given["TMPDIR"] = TEMPORARY
        needed = {"HOME": str(self._root), "LANG": "C.UTF-8", "TMPDIR": TEMPORARY, **given}
        return {"PATH": os.defpath, **self._environment.program_variables(needed, place)}

    def _on_end(self, program: LocalProgram) -> None:
        self._limits.programs.discard(program)
        self._limits.program_ended()
        if program.is_ending or program.run.exit_code == 0:
            return
        self._limits.find_reached(program.run, program.text)


def _note_refusal(program: LocalProgram, access: ProgramAccess | None, env: Mapping[str, str], text: str) -> None:
    """Tell that a program was refused a host. The log repeats no value of its variables, which a host may have."""
    program.add_note(text)
    if access is not None and not any(len(value) >= MIN_SECRET and value.lower() in text for value in env.values()):
        log.warning("a program of %s is %s", access.table, text)


def _check_words(argv: Sequence[str], env: Mapping[str, str]) -> None:
    if not argv or not argv[0]:
        raise ToolError("a program needs a name: its command line is empty")
    for name in env:
        if not name or "=" in name:
            raise ToolError(f"{name!r} is not the name of an environment variable")
