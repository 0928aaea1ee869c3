"""The files of the audit log: tampering is found, and a crash or a full disk is not reported as tampering."""

import asyncio
import contextlib
import hmac
import json
import logging
import os
import resource
import signal
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.clients.raw_client import PATIENCE
from toolgate.server.features.telemetry.audit import reader
from toolgate.server.features.telemetry.audit.chain_checker import AuditVerdict
from toolgate.server.features.telemetry.audit.log import CURRENT, HEAD_FILE, MAX_WAITING, AuditLog, rotated_files
from toolgate.server.state.audit.entry import HEAD_LENGTH, AuditEntry, ChainKey
from toolgate.server.state.keys import file as key_file

APPENDING = """
import asyncio, sys
from pathlib import Path
from tests.server.features.telemetry.audit.test_log import entry, opened
async def work():
    log = opened(Path(sys.argv[1]), most=20_000, kept=1000)
    print("ready", flush=True)
    sys.stdin.readline()
    for number in range(500):
        log.add(entry(f"{sys.argv[2]}-{number}"))
        await asyncio.sleep(0)
    while log.write() is not None:
        pass
    log.close()
asyncio.run(work())
"""


def entry(tool: str = "Bash", arguments: object = None) -> AuditEntry:
    time = "2026-01-01T00:00:00.000Z"
    return AuditEntry(0, time, "local", "tests", "", tool, None, "d", arguments, "allowed", "none", "ok", 0, 1.5, 10)


def opened(folder: Path, most: int = 2**20, kept: int = 10) -> AuditLog:
    return AuditLog(folder / "audit", folder / "keys" / "audit", most, kept)


def write(folder: Path, *tools: str, most: int = 2**20, kept: int = 10, together: int = 1) -> None:
    """Write entries as successive processes would, `together` in one turn of the loop."""

    async def work() -> None:
        log = opened(folder, most, kept)
        for number, tool in enumerate(tools):
            log.add(entry(tool))
            if number % together == together - 1:
                await asyncio.sleep(0)
        log.close()

    asyncio.run(work())


def verified(folder: Path) -> AuditVerdict:
    return reader.verify(folder / "audit", key_file.read_key(folder / "keys" / "audit"))


def broken(folder: Path) -> list[str]:
    return [f"{finding.place}: {finding.text}" for finding in verified(folder).findings if not finding.is_harmless]


def raw(folder: Path) -> list[bytes]:
    return (folder / "audit" / CURRENT).read_bytes().splitlines(keepends=True)


def put(folder: Path, lines: list[bytes]) -> None:
    (folder / "audit" / CURRENT).write_bytes(b"".join(lines))


def tools(folder: Path) -> list[str]:
    """Return the tools of all lines in all files."""
    names = [*rotated_files(folder / "audit"), CURRENT]
    lines = [line for name in names for line in (folder / "audit" / name).read_text().splitlines()]
    return [told["tool"] for told in map(json.loads, lines) if "tool" in told]


# -- tampering


def edited(lines: list[bytes]) -> list[bytes]:
    return [*lines[:3], lines[3].replace(b'"c"', b'"x"'), *lines[4:]]


def with_copy(lines: list[bytes]) -> list[bytes]:
    return [*lines, lines[3]]


def forged(lines: list[bytes]) -> list[bytes]:
    told = {**json.loads(lines[-1]), "seq": 7, "prev": json.loads(lines[-1])["hash"], "hash": "0" * 64}
    return [*lines, json.dumps(told, separators=(",", ":")).encode() + b"\n"]


TAMPERING: dict[str, tuple[Callable[[list[bytes]], list[bytes]], str]] = {
    "edited": (edited, "audit.jsonl:4: the line was changed"),
    "removed": (lambda lines: [*lines[:3], *lines[4:]], "audit.jsonl:4: line 4 is missing before it"),
    "several removed": (lambda lines: [*lines[:2], *lines[4:]], "audit.jsonl:3: lines 3 to 4 are missing"),
    "reordered": (lambda lines: [*lines[:3], lines[4], lines[3], lines[5]], "audit.jsonl:5: line 4 is out of order"),
    "inserted": (lambda lines: [*lines[:3], lines[1], *lines[3:]], "audit.jsonl:4: line 2 is out of order"),
    "repeated": (with_copy, "audit.jsonl:7: line 4 is out of order"),
    "forged": (forged, "audit.jsonl:7: the line was changed or put in"),
    "garbage": (lambda lines: [*lines[:3], b"\xff\x00nonsense\n", *lines[3:]], "audit.jsonl:4: the line was changed"),
    "cut off": (lambda lines: lines[:4], "audit.jsonl: lines 5 to 6 are missing at the end"),
    "beginning": (lambda lines: lines[2:], "audit.jsonl:1: the beginning of the file is missing"),
    "emptied": (lambda lines: [], "audit.jsonl: lines 1 to 6 are missing at the end"),
    "half a line": (lambda lines: [*lines[:5], lines[5][:40]], "audit.jsonl:6: the line was changed"),
}


@pytest.mark.parametrize("size", [0, 1, 64, 5_000])
def test_a_line_is_signed_with_hmac_sha_256(size: int) -> None:
    key, body = os.urandom(key_file.SIZE), os.urandom(size)
    signer = ChainKey(key)
    assert [signer.sign(body), signer.sign(body)] == [hmac.digest(key, body, "sha256").hex()] * 2


@pytest.mark.parametrize("how", TAMPERING)
def test_tampering_is_found_with_its_place(tmp_path: Path, how: str) -> None:
    tamper, said = TAMPERING[how]
    write(tmp_path, "a", "b", "c", "d", "e")
    assert verified(tmp_path).findings == []
    put(tmp_path, tamper(raw(tmp_path)))
    assert any(found.startswith(said) for found in broken(tmp_path)), broken(tmp_path)


@pytest.mark.parametrize("how", TAMPERING)
def test_tampering_is_found_after_a_server_has_continued(tmp_path: Path, how: str) -> None:
    write(tmp_path, "a", "b", "c", "d", "e")
    put(tmp_path, TAMPERING[how][0](raw(tmp_path)))
    write(tmp_path, "f", "g")
    assert broken(tmp_path)
    assert tools(tmp_path)[-2:] == ["f", "g"] if how not in ("garbage", "half a line") else True


def test_without_its_head_a_record_is_not_whole_also_when_a_server_went_on(tmp_path: Path) -> None:
    write(tmp_path, "a", "b")
    put(tmp_path, raw(tmp_path)[:2])
    (tmp_path / "audit" / HEAD_FILE).unlink()
    assert broken(tmp_path) == ["head: it is missing or damaged: whether lines are cut off at the end is not known"]
    write(tmp_path, "c")
    (found,) = broken(tmp_path)
    assert "the head was missing or damaged" in found


def test_a_head_moved_back_to_where_the_lines_were_cut_off_is_found(tmp_path: Path) -> None:
    write(tmp_path, "a", "b", "c")
    lines = raw(tmp_path)[:3]
    put(tmp_path, lines)
    head = tmp_path / "audit" / HEAD_FILE
    seal = head.read_bytes().split()[2]
    head.write_bytes(f"{3:016d} {json.loads(lines[-1])['hash']} {seal.decode()}\n".encode())
    assert len(head.read_bytes()) == HEAD_LENGTH and "head: it is missing or damaged" in broken(tmp_path)[0]


def test_a_record_that_was_removed_is_missed(tmp_path: Path) -> None:
    write(tmp_path, "a", "b", "c")
    (tmp_path / "audit" / CURRENT).unlink()
    assert broken(tmp_path) == ["audit.jsonl: lines 1 to 4 are missing at the end: cut off, or lost with the power"]
    write(tmp_path, "d")
    assert broken(tmp_path) == ["audit.jsonl:1: lines 1 to 4 are missing"]


def test_another_key_vouches_for_nothing(tmp_path: Path) -> None:
    write(tmp_path, "a")
    (tmp_path / "keys" / "audit").write_bytes(bytes(32))
    assert "another key" in broken(tmp_path)[0]


# -- files


def test_files_are_rotated_and_the_oldest_go_without_a_finding(tmp_path: Path) -> None:
    names = [f"t{number}" for number in range(60)]
    write(tmp_path, *names, most=1500, kept=4)
    verdict = verified(tmp_path)
    assert verdict.findings == [] and verdict.files == 4
    assert verdict.first is not None and verdict.first.seq > 1 and verdict.newest is not None
    kept = tools(tmp_path)
    assert kept == names[-len(kept) :]
    for path in (tmp_path / "audit").iterdir():
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE((tmp_path / "audit").stat().st_mode) == 0o700
    assert stat.S_IMODE((tmp_path / "keys" / "audit").stat().st_mode) == 0o600


def written(folder: Path) -> int:
    return len(raw(folder)) - 1  # a file begins with a note


def test_lines_wait_for_a_quiet_turn(tmp_path: Path) -> None:
    async def work() -> None:
        log = AuditLog(tmp_path / "audit", tmp_path / "keys" / "audit", gather=60.0)
        log.add(entry())
        await asyncio.sleep(0)
        assert written(tmp_path) == 1  # alone in its turn
        for _ in range(3):
            log.add(entry())
        await asyncio.sleep(0)
        assert written(tmp_path) == 1  # more may come
        await asyncio.sleep(0)
        assert written(tmp_path) == 4  # none came
        log.close()

    asyncio.run(work())
    assert broken(tmp_path) == []


def test_lines_wait_for_no_more_than_a_moment(tmp_path: Path) -> None:
    async def work() -> None:
        log = opened(tmp_path)
        log.add(entry())
        await asyncio.sleep(0)
        added = 1
        while written(tmp_path) == 1:  # several come in each turn, without an end
            added += 2
            log.add(entry())
            log.add(entry())
            await asyncio.sleep(0)
            assert added < MAX_WAITING
        assert 3 <= written(tmp_path) <= added
        log.close()
        assert written(tmp_path) == added

    asyncio.run(work())
    assert broken(tmp_path) == []


def test_a_line_that_comes_after_the_end_is_written(tmp_path: Path) -> None:
    async def work() -> None:
        log = opened(tmp_path)
        for turns in range(3):
            for _ in range(3):
                log.add(entry())
            for _ in range(turns):
                await asyncio.sleep(0)
            log.close()
            log.add(entry("late"))
            await asyncio.sleep(0)
            assert tools(tmp_path)[-1] == "late"
        log.close()

    asyncio.run(work())
    assert broken(tmp_path) == []


@pytest.mark.parametrize("which", [0, 1, 2])
def test_a_full_file_that_was_removed_is_missed(tmp_path: Path, which: int) -> None:
    write(tmp_path, *(f"t{number}" for number in range(60)), most=1500, kept=4)
    name = rotated_files(tmp_path / "audit")[which]
    (tmp_path / "audit" / name).unlink()
    assert f"{name}: the file is missing" in broken(tmp_path)


def test_a_link_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "audit").mkdir()
    (tmp_path / "elsewhere").write_text("precious")
    (tmp_path / "audit" / HEAD_FILE).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OSError):
        opened(tmp_path)
    assert (tmp_path / "elsewhere").read_text() == "precious"


# -- several processes, and sudden ends


def test_processes_that_write_at_once_keep_one_chain(tmp_path: Path) -> None:
    words = [sys.executable, "-c", APPENDING, str(tmp_path)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with contextlib.ExitStack() as stack:
        writers = [stack.enter_context(subprocess.Popen([*words, name], **pipes)) for name in "xyz"]  # type: ignore[call-overload]
        for writer in writers:
            assert writer.stdout.readline() == "ready\n"
        for writer in writers:
            writer.stdin.write("\n")
            writer.stdin.flush()
        assert [writer.wait(PATIENCE) for writer in writers] == [0, 0, 0]
    verdict = verified(tmp_path)
    assert verdict.findings == [] and verdict.files > 2
    written = tools(tmp_path)
    for name in "xyz":
        assert [tool for tool in written if tool[0] == name] == [f"{name}-{number}" for number in range(500)]


def test_a_process_that_holds_the_lock_blocks_no_call(tmp_path: Path) -> None:
    import fcntl

    async def work() -> None:
        log = opened(tmp_path)
        with (tmp_path / "audit" / HEAD_FILE).open("rb") as other:
            fcntl.flock(other, fcntl.LOCK_EX)
            log.add(entry("a"))
            assert log.write() is not None
        log.close()

    asyncio.run(work())
    assert tools(tmp_path) == ["a"] and verified(tmp_path).findings == []


@pytest.mark.parametrize("left", [1, 40, 300])
def test_an_unfinished_line_is_repaired_and_not_reported_as_tampering(tmp_path: Path, left: int) -> None:
    write(tmp_path, "a", "b")
    lines, head = raw(tmp_path), (tmp_path / "audit" / HEAD_FILE).read_bytes()
    write(tmp_path, "c")
    put(tmp_path, [*lines, raw(tmp_path)[-1][:left]])  # killed in the middle of its write: the head is as it was
    (tmp_path / "audit" / HEAD_FILE).write_bytes(head)
    write(tmp_path, "d")
    (finding,) = verified(tmp_path).findings
    assert finding.is_harmless and finding.place == "audit.jsonl:4" and finding.text.startswith("torn")
    put(tmp_path, [*raw(tmp_path)[:3], b"x" + raw(tmp_path)[3], *raw(tmp_path)[4:]])
    assert broken(tmp_path)[0].startswith("audit.jsonl:4: the line was changed")


def test_a_process_killed_between_a_line_and_the_head_leaves_a_whole_record(tmp_path: Path) -> None:
    write(tmp_path, "a", "b")
    head = (tmp_path / "audit" / HEAD_FILE).read_bytes()
    write(tmp_path, "c")
    (tmp_path / "audit" / HEAD_FILE).write_bytes(head)
    assert verified(tmp_path).findings == []
    write(tmp_path, "d")
    assert verified(tmp_path).findings == [] and tools(tmp_path) == ["a", "b", "c", "d"]


def test_two_processes_killed_around_the_start_of_a_file_leave_a_whole_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path, "first", most=1_000_000)
    head = tmp_path / "audit" / HEAD_FILE
    before = head.read_bytes()
    write(tmp_path, *["full"] * 5, most=1_000_000)
    head.write_bytes(before)  # killed after its lines, before their head

    def rename(source: Path, target: Path) -> None:
        Path(source).replace(target)
        raise KeyboardInterrupt  # killed

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(os, "rename", rename)
        write(tmp_path, "lost", most=1_000)
    write(tmp_path, "last", most=1_000)
    assert broken(tmp_path) == []


@contextlib.contextmanager
def no_room(bytes: int) -> Iterator[None]:
    """Limit the size of any file, as on a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, before)


def test_entries_wait_on_a_full_disk_until_there_is_room(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def work() -> None:
        log = opened(tmp_path)
        log.add(entry("a"))
        await asyncio.sleep(0)
        size = (tmp_path / "audit" / CURRENT).stat().st_size
        with no_room(size + 100):
            for number in range(3):
                log.add(entry(f"b{number}"))
                assert log.write() is not None
            assert (tmp_path / "audit" / CURRENT).stat().st_size == size
        log.close()

    with caplog.at_level(logging.ERROR, "toolgate.audit"):
        asyncio.run(work())
    assert tools(tmp_path) == ["a", "b0", "b1", "b2"] and verified(tmp_path).findings == []
    assert [record.getMessage().partition(":")[0] for record in caplog.records] == [
        "the audit log can't be written; calls go on"
    ]


def test_entries_beyond_the_waiting_limit_are_counted(tmp_path: Path) -> None:
    async def work() -> None:
        log = opened(tmp_path)
        with no_room(0):
            log.add(entry("a"))
            assert log.write() is not None
            for _ in range(MAX_WAITING + 6):
                log.add(entry("b"))
        log.close()

    asyncio.run(work())
    assert len(tools(tmp_path)) == MAX_WAITING
    (finding,) = verified(tmp_path).findings
    assert finding.is_harmless and "7 calls could not be recorded" in finding.text


def test_on_a_disk_that_is_really_full_the_record_stays_whole(tmp_path: Path) -> None:
    folder = tmp_path / "audit"
    folder.mkdir(mode=0o700)
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", folder], capture_output=True)
    if mounted.returncode:
        pytest.skip("no file system can be mounted here")

    async def work() -> None:
        log = opened(tmp_path)
        for number in range(120):
            log.add(entry(f"t{number}"))
            if number % 7 == 0:
                log.write()
        assert log.write() is not None
        assert verified(tmp_path).findings == []
        os.truncate(folder / "filler", 0)
        assert log.write() is None
        log.close()

    try:
        (folder / "filler").write_bytes(bytes(48 * 1024))
        asyncio.run(work())
        assert verified(tmp_path).findings == []
    finally:
        subprocess.run(["umount", "-l", folder], check=True)


def test_the_newest_file_alone_is_verified_in_a_moment(tmp_path: Path) -> None:
    write(tmp_path, *(f"t{number}" for number in range(60)), most=4_000)
    folder, key = tmp_path / "audit", key_file.read_key(tmp_path / "keys" / "audit")
    whole = reader.verify(folder, key)
    newest = reader.verify(folder, key, newest=True)
    assert newest.is_intact and newest.files == 1 < whole.files and newest.newest == whole.newest
    older = sorted(folder.glob("audit-*.jsonl"))[0]
    older.write_bytes(older.read_bytes().replace(b'"t3"', b'"t4"'))
    assert reader.verify(folder, key, newest=True).is_intact and not reader.verify(folder, key).is_intact
    current = folder / CURRENT
    current.write_bytes(current.read_bytes().replace(b"local", b"other", 1))
    assert [finding.place for finding in reader.verify(folder, key, newest=True).findings] == [f"{CURRENT}:2"]


def test_full_files_are_closed(tmp_path: Path) -> None:
    before = os.listdir("/proc/self/fd")
    write(tmp_path, *map(str, range(100)), most=2_000, kept=3)
    assert len(rotated_files(tmp_path / "audit")) == 2 and len(os.listdir("/proc/self/fd")) == len(before)


# -- all of it gone


def emptied(folder: Path) -> None:
    for path in (folder / "audit").iterdir():
        path.unlink()


def test_a_record_that_was_emptied_is_missed_also_when_a_server_went_on(tmp_path: Path) -> None:
    write(tmp_path, "a", "b")
    emptied(tmp_path)
    assert broken(tmp_path) == ["head: it is missing or damaged: whether lines are cut off at the end is not known"]
    (tmp_path / "audit" / HEAD_FILE).touch()
    assert len(broken(tmp_path)) == 1
    write(tmp_path, "c")
    (found,) = broken(tmp_path)
    assert "the head was missing or damaged" in found


def test_a_record_that_is_emptied_while_its_server_runs_is_missed(tmp_path: Path) -> None:
    async def work() -> None:
        log = opened(tmp_path)
        for name in ("a", "b"):
            log.add(entry(name))
            assert log.write() is None
            emptied(tmp_path)
        log.close()

    asyncio.run(work())
    write(tmp_path, "c")
    assert len(broken(tmp_path)) == 1  # emptied once more, and written anew
    assert "the head was missing or damaged" in broken(tmp_path)[0]


def test_a_record_put_back_as_it_was_is_missed_by_the_server_that_went_on(tmp_path: Path) -> None:
    async def work() -> None:
        log = opened(tmp_path)
        log.add(entry("a"))
        assert log.write() is None
        before = {path: path.read_bytes() for path in (tmp_path / "audit").iterdir()}
        log.add(entry("b"))
        assert log.write() is None
        emptied(tmp_path)
        for path, data in before.items():
            path.write_bytes(data)
        log.add(entry("c"))
        log.close()

    asyncio.run(work())
    assert broken(tmp_path) == ["audit.jsonl:3: line 3 is missing before it"]


def test_a_record_of_nothing_yet_is_whole(tmp_path: Path) -> None:
    write(tmp_path)
    assert (verified(tmp_path).findings, verified(tmp_path).lines) == ([], 0)
    write(tmp_path)
    write(tmp_path, "a")
    assert verified(tmp_path).findings == []
