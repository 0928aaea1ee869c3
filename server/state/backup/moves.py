"""Rename files within a state folder as one step that can be undone, also after the process was killed.

    .restoring-…/moves.json     the renames, in order; on the disk before the first one, removed after the last

A rename is done where its source is gone and its target is there. So the list alone says what to undo.
"""

import os
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path

import msgspec

from toolgate.server.state import lock
from toolgate.server.state.backup.manifest import BackupError
from toolgate.tools.api.regular_file import read_regular
from toolgate.tools.api.text.json_text import decode_json

MAX_JOURNAL = 256 * 2**20  # bytes: paths of 200,000 files


class Move(msgspec.Struct, frozen=True, array_like=True):
    """A rename within the state folder, by paths relative to it."""

    source: str
    target: str


def write_journal(stage: Path, moves: Sequence[Move]) -> None:
    """Write down the moves that begin now. Raises OSError. The caller syncs the disk."""
    (stage / lock.JOURNAL).write_bytes(msgspec.json.encode(moves))


def remove_journal(stage: Path) -> None:
    """End the step: its moves stay."""
    (stage / lock.JOURNAL).unlink(missing_ok=True)


def make_moves(state: Path, moves: Iterable[Move]) -> None:
    """Make the moves in order. Raises OSError at the first that fails."""
    for move in moves:
        target = state / move.target
        target.parent.mkdir(mode=0o700, exist_ok=True)
        (state / move.source).rename(target)


def undo_moves(state: Path, stage: Path) -> None:
    """Undo the moves in the journal of `stage`, the last one first, and remove it. Raises OSError and BackupError."""
    moves = _read_journal(stage / lock.JOURNAL)
    for move in reversed(moves):
        source, target = state / move.source, state / move.target
        if os.path.lexists(target) and not os.path.lexists(source):
            target.rename(source)
    for folder in sorted({(state / move.target).parent for move in moves}, reverse=True):  # the deepest first
        if folder != state:
            with suppress(OSError):  # it is not empty, or is not there
                folder.rmdir()
    for aside in {move.target.partition("/")[0] for move in moves if move.target.startswith(lock.REPLACED)}:
        with suppress(OSError):
            (state / aside).rmdir()
    remove_journal(stage)


def _read_journal(journal: Path) -> list[Move]:
    try:
        return decode_json(read_regular(journal, MAX_JOURNAL), list[Move])
    except ValueError as error:
        raise BackupError(f"{journal} is damaged ({error}): move the files back by hand") from None
