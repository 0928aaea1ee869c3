"""Show and verify the audit log (`toolgate audit`)."""

import heapq
import json
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from fnmatch import fnmatchcase
from functools import partial
from itertools import islice
from typing import Any

from toolgate.server.base import progress
from toolgate.server.base.errors import UsageError
from toolgate.server.base.run_loop import run_interruptible
from toolgate.server.base.text import escape_unprintable, format_time, suggest
from toolgate.server.cli.commands.store_command import read_names, refuse_other_owner
from toolgate.server.cli.terminal.output import format_count, print_json_line, print_table
from toolgate.server.config.load import Config
from toolgate.server.features.telemetry.audit import reader
from toolgate.server.features.telemetry.audit.chain_checker import AuditVerdict
from toolgate.server.features.telemetry.commands.audit_sources import (
    AuditFiles,
    AuditRows,
    AuditSource,
    AuditSourceError,
    open_files,
    open_rows,
)
from toolgate.server.features.telemetry.commands.table import WORDS
from toolgate.server.state.audit.entry import ChainKey, DamagedLineError, EntryData, parse_line
from toolgate.tools.workspace import limits

DONE, FAULT = 0, 1
DEFAULT_LAST = 50  # entries to show
MAX_CELL = 60  # characters
MAX_FINDINGS = 50  # shown
MIN_PREFIX = 8  # characters of a principal's name in the record that are enough to name it
PIECE = 1_000  # entries that are in memory at a time
NO_END = "~"  # after all times
DAYS = {"today": 0, "yesterday": 1}  # days ago, in UTC
COLUMNS = {  # column → its usual width
    "TIME": 24,
    "PRINCIPAL": 16,
    "CLIENT": 16,
    "TOOL": 16,
    "DECISION": 9,
    "OUTCOME": 9,
    "EXIT": 4,
    "MS": 9,
    "BYTES": 8,
    "ARGUMENTS": 12,
}

Entry = EntryData


def show(config: Config, **filters: Any) -> int:
    """Print the newest calls that pass all filters. Raises UsageError."""
    refuse_other_owner(config)
    listing = _CallListing(config, filters)
    return _run(config, listing.show, verifies=False)


def verify(config: Config) -> int:
    """Check the whole record; 0 if it is intact. Raises UsageError."""
    refuse_other_owner(config)
    return _run(config, partial(_verify, progress.terminal_progress(config.environment)), verifies=True)


def _run(config: Config, use: Callable[[AuditFiles | None, AuditRows | None], int], *, verifies: bool) -> int:
    try:
        with open_rows(config) as rows:
            files = open_files(config.state, verifies=verifies)
            return use(files, rows) if files is not None or rows is not None else _say_empty()
    except AuditSourceError as error:
        print(f"toolgate: {error}", file=sys.stderr)
        return FAULT


def _say_empty() -> int:
    print("nothing is on record: serve with --audit on to record calls", file=sys.stderr)
    return DONE


def _verify(shown: progress.TerminalProgress, files: AuditFiles | None, rows: AuditRows | None) -> int:
    """Print what is wrong with the record; 0 if it is intact."""
    is_intact = True
    if files is not None:
        with shown.show("reading bytes of the record") as at:
            verdict = reader.verify(files.folder, files.raw_key, on_progress=at)
        is_intact &= _print_verdict(verdict, format_count(verdict.files, "file"))
        if verdict.newest is not None:
            print(f"newest: {verdict.newest.seq} {verdict.newest.hash}")
    if rows is not None:
        with shown.show("reading lines of the record") as at:
            verdict, newest = rows.verify(at)
        is_intact &= _print_verdict(verdict, format_count(verdict.chains, "chain"))
        for chain, (seq, hash) in sorted(newest.items())[:MAX_FINDINGS]:
            print(f"newest: {chain} {seq} {hash}")
    return DONE if is_intact else FAULT


def _print_verdict(verdict: AuditVerdict, where: str) -> bool:
    """Print findings and a summary. Return whether the record is intact."""
    for finding in verdict.findings[:MAX_FINDINGS]:
        print(f"{'note' if finding.is_harmless else 'BROKEN'}: {finding.place}: {finding.text}")
    if len(verdict.findings) > MAX_FINDINGS:
        print(f"… and {len(verdict.findings) - MAX_FINDINGS} more")
    first, newest = verdict.first, verdict.newest
    if first is None or newest is None:
        print("the record is empty" if verdict.is_intact else "BROKEN: no line is intact")
        return verdict.is_intact
    if verdict.chains:  # which have numbers each
        span = f"{format_count(verdict.lines, 'line')}, {first.time} to {newest.time}"
    else:
        span = f"lines {first.seq} to {newest.seq}, {first.time} to {newest.time}"
    print(f"{'intact' if verdict.is_intact else 'BROKEN'}: {span}, in {where}")
    return verdict.is_intact


class _CallListing:
    """The recorded calls that the command's flags select."""

    def __init__(self, config: Config, flags: Mapping[str, Any]) -> None:
        self._config = config
        self._flags = flags
        self._last = _parse_number(flags.get("last"))
        self._since, self._until = _parse_time("since", flags), _parse_time("until", flags)
        if flags.get("follow") and flags.get("until"):
            raise UsageError("--follow waits for calls to come, and --until ends with a time: leave one out")
        for name, words in WORDS.items():
            if flags.get(name) not in (None, *words):
                given = flags[name]
                raise UsageError(f"--{name}: must be one of {', '.join(words)}, not {given!r}{suggest(given, words)}")
        self._people: dict[str, str] = {}
        self._clients: dict[str, str] = {}
        self._damaged = 0

    def show(self, files: AuditFiles | None, rows: AuditRows | None) -> int:
        self._people, self._clients = read_names(self._config)
        sources: list[AuditSource] = [source for source in (files, rows) if source is not None]
        newest = sources[-1]
        follow = newest.follow(partial(self._print_new, newest.key)) if self._flags.get("follow") else None
        entries = self._read_newest(sources) if self._last else self._read_all(sources)
        self._print(list(islice(entries, PIECE)), heading=True)
        while piece := list(islice(entries, PIECE)):
            self._print(piece, heading=False)
        if self._damaged:
            damaged = format_count(self._damaged, "line")
            are = "is" if self._damaged == 1 else "are"
            print(f"{damaged} can't be trusted and {are} left out: see toolgate audit verify", file=sys.stderr)
        if follow is not None:
            with suppress(KeyboardInterrupt):
                run_interruptible(follow())
        return DONE

    def _read_newest(self, sources: list[AuditSource]) -> Iterator[Entry]:
        """Return the newest entries, the oldest of them first."""
        newest = [
            entry
            for source in sources
            for entry in source.newest(partial(self._matching, source.key), self._last, *self._span)
        ]
        return iter(sorted(newest, key=_find_time)[-self._last :] if len(sources) > 1 else newest)

    def _read_all(self, sources: list[AuditSource]) -> Iterator[Entry]:
        every = [self._matching(source.key, source.lines(*self._span)) for source in sources]
        return heapq.merge(*every, key=_find_time)

    @property
    def _span(self) -> tuple[str | None, str | None]:
        """Return the first and the last time that a source is asked for."""
        return self._since or None, None if self._until == NO_END else self._until

    def _print_new(self, key: ChainKey, raw: Iterator[bytes]) -> None:
        self._print(self._matching(key, raw), heading=False)

    def _matching(self, key: ChainKey, raw: Iterator[bytes]) -> Iterator[Entry]:
        for line in raw:
            try:
                link = parse_line(line, key)
            except DamagedLineError:
                self._damaged += 1
                continue
            if link.event is None and self._since <= link.time <= self._until:
                entry: Entry = json.loads(line)
                if self._matches(entry):
                    yield entry

    def _matches(self, entry: Entry) -> bool:
        who, tool = self._flags.get("principal"), self._flags.get("tool")
        words = (self._flags.get(name) in (None, entry[name]) for name in ("decision", "outcome"))
        return (
            all(words)
            and (tool is None or fnmatchcase(entry["tool"], tool))
            and (who is None or self._is_by(entry["principal"], who))
        )

    def _is_by(self, principal: str, who: str) -> bool:
        begins = len(who) >= MIN_PREFIX and principal.startswith(who)
        return begins or who in (principal, self._people.get(principal))

    def _print(self, entries: Iterable[Entry], *, heading: bool) -> None:
        if self._flags.get("json"):
            for entry in entries:
                print_json_line(entry)
        elif rows := [self._row(entry) for entry in entries]:
            if heading:
                print_table([list(COLUMNS), *rows])
            else:
                print_table(rows, COLUMNS.values())  # fixed widths: these stand below earlier rows
        elif heading:
            print("no call on record matches", file=sys.stderr)
        sys.stdout.flush()

    def _row(self, entry: Entry) -> list[str]:
        arguments = entry["digest"][:12] if entry["arguments"] is None else entry["arguments"]
        cells = (
            entry["time"],
            self._people.get(entry["principal"], entry["principal"][:14]),
            self._clients.get(entry["client"], entry["client"]),
            entry["tool"],
            entry["decision"],
            entry["outcome"],
            "" if entry["exit"] is None else entry["exit"],
            entry["duration_ms"],
            entry["bytes"],
            arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False),
        )
        return [_format_cell(str(cell)) for cell in cells]


def _find_time(entry: Entry) -> str:
    time: str = entry["time"]
    return time


def _format_cell(text: str) -> str:
    """Return one short line without control characters."""
    shown = escape_unprintable(text)
    return shown if len(shown) <= MAX_CELL else shown[: MAX_CELL - 1] + "…"


def _parse_number(word: str | None) -> int:
    if word is None:
        return DEFAULT_LAST
    if not (word.isascii() and word.isdigit() and len(word) < 10):
        raise UsageError(f"--last: must be a number (0: all), not {word!r}")
    return int(word)


def _parse_time(name: str, flags: Mapping[str, Any]) -> str:
    """Return a time in the record's format, in UTC unless it has a zone. Raises UsageError."""
    word = flags.get(name)
    if word is None:
        return "" if name == "since" else NO_END
    if word in DAYS:
        today = datetime.now(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
        return format_time((today - timedelta(days=DAYS[word])).timestamp())
    try:
        return format_time(time.time() - limits.parse_duration(word))
    except ValueError:
        pass
    try:
        given = datetime.fromisoformat(word)
        moment = given if given.tzinfo is not None else given.replace(tzinfo=UTC)
        return format_time(moment.timestamp())
    except (ValueError, OverflowError, OSError):
        similar = suggest(word, DAYS)
        raise UsageError(
            f"--{name}: must be a time such as 2026-01-31T12:00, today or yesterday, or 90m, 12h or 7d ago, "
            f"not {word!r}{similar}"
        ) from None
