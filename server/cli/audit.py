"""Show and verify the audit log (`toolgate audit`)."""

import asyncio
import json
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import aclosing, closing, suppress
from datetime import UTC, datetime, timedelta
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path
from typing import Any

from toolgate.server import progress
from toolgate.server.cli.output import format_count, print_table
from toolgate.server.cli.store_command import read_people, refuse_other_owner
from toolgate.server.config.load import Config
from toolgate.server.protocol.errors import UsageError
from toolgate.server.run_loop import run_interruptible
from toolgate.server.state import key_file
from toolgate.server.state.stores import open_store
from toolgate.server.telemetry.audit import entry as lines
from toolgate.server.telemetry.audit import reader
from toolgate.server.text import describe_os_error, escape_unprintable, suggest
from toolgate.tools import ToolError
from toolgate.tools.workspace import limits

DONE, FAULT = 0, 1
DEFAULT_LAST = 50  # entries to show
MAX_CELL = 60  # characters
MAX_FINDINGS = 50  # shown
MIN_PREFIX = 8  # characters of a principal's name in the record that are enough to name it
DEBOUNCE_MS = 240  # ms that lines are gathered while more keep coming
DAYS = {"today": 0, "yesterday": 1}  # days ago, in UTC
WORDS = {  # filter → its words
    "decision": (
        *("allowed", "approved", "denied", "declined", "cancelled", "unanswered", "asked", "cannot_ask"),
        *("plan", "limited", "scope"),
    ),
    "outcome": ("ok", "error", "refused", "cancelled", "fault", "task", "asked"),
}
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

Entry = dict[str, Any]


def show(config: Config, **filters: Any) -> int:
    """Print the newest calls that pass all filters. Raises UsageError."""
    refuse_other_owner(config)
    listing = _Listing(config, filters)
    return _with_key(config.state, listing.show, is_on_record=(config.state / "audit").is_dir())


def verify(config: Config) -> int:
    """Check the whole record; 0 if it is intact. Raises UsageError."""
    refuse_other_owner(config)
    folder, key_path = config.state / "audit", config.state / "keys" / "audit"
    check = partial(_verify, folder, progress.terminal_progress(config.environment))
    return _with_key(config.state, check, is_on_record=folder.is_dir() or key_path.exists())


def _with_key(state: Path, use: Callable[[bytes], int], *, is_on_record: bool) -> int:
    if not is_on_record:
        print("nothing is on record: serve with --audit on to record calls", file=sys.stderr)
        return DONE
    try:
        key = key_file.read_key(state / "keys" / "audit")
    except OSError as error:
        print(f"toolgate: the record can't be read without its key: {describe_os_error(error)}", file=sys.stderr)
        return FAULT
    return use(key)


def _verify(folder: Path, shown: progress.TerminalProgress, key: bytes) -> int:
    """Print what is wrong with the record; 0 if it is intact."""
    with shown.show("reading bytes of the record") as at:
        verdict = reader.verify(folder, key, on_progress=at)
    for finding in verdict.findings[:MAX_FINDINGS]:
        print(f"{'note' if finding.is_harmless else 'BROKEN'}: {finding.place}: {finding.text}")
    if len(verdict.findings) > MAX_FINDINGS:
        print(f"… and {len(verdict.findings) - MAX_FINDINGS} more")
    if verdict.first is None or verdict.newest is None:
        print("the record is empty" if verdict.is_intact else "BROKEN: no line is whole")
        return DONE if verdict.is_intact else FAULT
    span = f"lines {verdict.first.seq} to {verdict.newest.seq}, {verdict.first.time} to {verdict.newest.time}"
    print(f"{'whole' if verdict.is_intact else 'BROKEN'}: {span}, in {format_count(verdict.files, 'file')}")
    print(f"newest: {verdict.newest.seq} {verdict.newest.hash}")
    return DONE if verdict.is_intact else FAULT


class _Listing:
    """The recorded calls that the command's flags select."""

    def __init__(self, config: Config, flags: Mapping[str, Any]) -> None:
        self._config = config
        self._folder = config.state / "audit"
        self._flags = flags
        self._last = _parse_number(flags.get("last"))
        self._since, self._until = _parse_time("since", flags), _parse_time("until", flags)
        for name, words in WORDS.items():
            if flags.get(name) not in (None, *words):
                given = flags[name]
                raise UsageError(f"--{name}: must be one of {', '.join(words)}, not {given!r}{suggest(given, words)}")
        self._people: dict[str, str] = {}
        self._damaged = 0

    def show(self, key: bytes) -> int:
        self._key = lines.ChainKey(key)
        self._people = _read_names(self._config)
        following = reader.AuditTail(self._folder) if self._flags.get("follow") else None
        newest: deque[Entry] = deque(maxlen=self._last or None)
        with closing(reader.AuditSnapshot(self._folder)) as snapshot:
            for name in snapshot.names:
                newest.extend(self._matching(snapshot.lines(name)))
        self._print(newest, heading=True)
        if self._damaged:
            damaged = format_count(self._damaged, "line")
            print(f"{damaged} can't be trusted and are left out: see toolgate audit verify", file=sys.stderr)
        if following is not None:
            from toolgate.server import watch  # start-up

            async def print_new() -> None:
                self._print(self._matching(following.lines()), heading=False)

            with closing(following), suppress(KeyboardInterrupt):
                run_interruptible(watch.watch_folders("audit", lambda: [self._folder], print_new, DEBOUNCE_MS))
        return DONE

    def _matching(self, raw: Iterator[bytes]) -> Iterator[Entry]:
        for line in raw:
            try:
                link = lines.parse_line(line, self._key)
            except lines.DamagedLineError:
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
                print(json.dumps(entry).replace("\x7f", "\\u007f"))  # all else that is no ASCII is escaped
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
            entry["client"],
            entry["tool"],
            entry["decision"],
            entry["outcome"],
            "" if entry["exit"] is None else entry["exit"],
            entry["duration_ms"],
            entry["bytes"],
            arguments if isinstance(arguments, str) else json.dumps(arguments),
        )
        return [_format_cell(str(cell)) for cell in cells]


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
        return "" if name == "since" else "~"
    if word in DAYS:
        today = datetime.now(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
        return lines.format_time((today - timedelta(days=DAYS[word])).timestamp())
    try:
        return lines.format_time(time.time() - limits.parse_duration(word))
    except ValueError:
        pass
    try:
        given = datetime.fromisoformat(word)
        moment = given if given.tzinfo is not None else given.replace(tzinfo=UTC)
        return lines.format_time(moment.timestamp())
    except (ValueError, OverflowError, OSError):
        similar = suggest(word, DAYS)
        raise UsageError(
            f"--{name}: must be a time such as 2026-01-31T12:00, today or yesterday, or 90m, 12h or 7d ago, "
            f"not {word!r}{similar}"
        ) from None


def _read_names(config: Config) -> dict[str, str]:
    """Return the names of people by principal, or an empty dict if they can't be read."""

    async def read() -> dict[str, str]:
        async with aclosing(open_store(config.state, config.database, upgrades=False)) as store:
            return await read_people(store)

    try:
        return asyncio.run(read())
    except ToolError as error:  # the record is shown without names
        print(f"people's names are not known: {error}", file=sys.stderr)
        return {}
