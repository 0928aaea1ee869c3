"""Spare each forked server the trial of its sandbox, which takes more time than the rest of its start.

The server that forked_command.py starts first makes the trial for all with its level: bwrap, where the modes of folders
above do not matter. A server with other options, and a program that is not forked, makes its own.
"""

import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

Key = tuple[Any, ...]


def note_trials() -> list[Key]:
    """Return the list to which each trial that this process passes is added."""
    from toolgate.tools.workspace.sandbox import trial

    passed: list[Key] = []
    run = trial.run_trial

    def run_and_note(build: Any, place: Path | None, uid: int | None, path: str) -> str | None:
        failure = run(build, place, uid, path)
        if failure is None:
            passed.append(_find_key(build, uid, path))
        return failure

    trial.run_trial = run_and_note
    return passed


def spare_trials(passed: list[Key]) -> None:
    """Let those of this process and its forks pass that equal one in the list."""
    from toolgate.tools.workspace.sandbox import trial

    run = trial.run_trial
    disk = os.stat(tempfile.gettempdir()).st_dev

    def run_unless_passed(build: Any, place: Path | None, uid: int | None, path: str) -> str | None:
        is_ordinary = place is not None and place.stat().st_dev == disk and os.access(place, os.W_OK)
        if is_ordinary and _find_key(build, uid, path) in passed:
            return None
        return run(build, place, uid, path)

    trial.run_trial = run_unless_passed


def _find_key(build: Callable[..., Any], uid: int | None, path: str) -> Key:
    """Return what decides on a trial beside the machine and its folder. `build`: a `partial` of a sandbox's method."""
    sandbox = build.func.__self__  # type: ignore[attr-defined]
    of_it = (sandbox.level, sandbox.bwrap, sandbox.network, sandbox.uids, sandbox.filter, *sandbox.readable_paths)
    return (*of_it, uid, path, os.geteuid())
