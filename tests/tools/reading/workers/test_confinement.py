"""A worker that a hostile document took over can do nothing. A test job stands in for the takeover."""

import asyncio
import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from tests.tools.documents import DOCUMENTS
from tests.tools.reading.workers.test_pool import done
from toolgate.tools.reading.web.convert import RawPage, ReadablePage
from toolgate.tools.reading.workers import pool as module
from toolgate.tools.reading.workers.pool import Workers

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the confinement is Linux's")

ROOT = os.geteuid() == 0
NOTHING: dict[str, str] = {}
# A worker whose job "page" tries the lines of the body, and returns how each ended
TAKEN_OVER = """if True:
    import ctypes, mmap, os, resource, signal, socket, threading
    from toolgate.tools.reading.web import convert as pages
    from toolgate.tools.builtin import worker_main as worker

    def attempt(line):
        try:
            return repr(eval(line))
        except BaseException as error:
            return getattr(error, "strerror", None) or str(error)

    def take_over(raw):
        lines = raw.body.decode().splitlines()
        return {line: attempt(line) for line in lines}

    worker.JOBS["page"] = (pages.RawPage, lambda: None, take_over)
    worker.main()
"""
FILES = ("open('/etc/shadow')", "open('/etc/passwd')", "os.open('/', os.O_RDONLY)", "open('/proc/1/environ')")
WRITES = (
    "open('/tmp/here', 'w')",
    "os.open('/dev/shm', os.O_TMPFILE | os.O_RDWR)",
    "os.memfd_create('x')",
)
SOCKETS = ("socket.socket()", "socket.socket(socket.AF_UNIX)", "socket.socketpair()", "os.pipe()")
PROCESSES = ("os.fork()", "os.posix_spawn('/bin/true', ['true'], dict())")
PATHS = ("os.mkdir('/tmp/here')", "os.unlink('{file}')", "os.chmod('{file}', 0o777)", "os.listdir('/')")
SIGNALS = ("os.kill({server}, 0)", "os.kill({server}, signal.SIGKILL)", "os.kill(-1, 0)", "os.killpg(0, 0)")
LOOKS = (
    "os.pidfd_open({server})",
    "resource.prlimit({server}, resource.RLIMIT_NOFILE)",
    "threading.Thread(target=int).start()",
    "os.execv('/bin/true', ['true'])",
    "os.setresuid(0, 0, 0)",
    "mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_EXEC)",
    "resource.setrlimit(resource.RLIMIT_NOFILE, (100, 100))",
)
REFUSED = (
    "not permitted",
    "Too many open files",
    "temporarily unavailable",
    "Permission denied",
    "can't start new thread",
    "not allowed to raise",
)


@contextlib.contextmanager
def taken_over(filter: bytes | None = None) -> Iterator[Workers]:
    """Yield workers with this seccomp program; None is the usual one."""
    workers = Workers()
    workers._filter = filter
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "PROGRAM", (sys.executable, "-c", TAKEN_OVER))
        yield workers


def attempts(workers: Workers, *lines: str) -> dict[str, str]:
    async def body() -> dict[str, str]:
        try:
            return await done(workers, "page", RawPage("\n".join(lines).encode(), "", "", ""), dict[str, str])
        finally:
            await workers.close()

    return asyncio.run(asyncio.wait_for(body(), 30))


def succeeded(outcomes: dict[str, str]) -> dict[str, str]:
    return {line: outcome for line, outcome in outcomes.items() if not any(word in outcome for word in REFUSED)}


@pytest.mark.parametrize("lines", [FILES, WRITES, SOCKETS, PROCESSES, PATHS, SIGNALS, LOOKS])
def test_a_worker_that_is_taken_over_can_do_nothing(lines: tuple[str, ...], tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    file.chmod(0o666)
    given = [line.format(server=os.getpid(), file=file) for line in lines]
    with taken_over() as workers:
        outcomes = attempts(workers, *given)
    assert len(outcomes) == len(given)
    assert succeeded(outcomes) == NOTHING
    assert file.exists()


@pytest.mark.parametrize("lines", [FILES, WRITES, SOCKETS, PROCESSES])
def test_without_libseccomp_it_still_opens_and_starts_nothing(lines: tuple[str, ...]) -> None:
    with taken_over(filter=b"") as workers:
        assert succeeded(attempts(workers, *lines)) == NOTHING


def status(pid: int) -> dict[str, list[str]]:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    found = {name: value.split() for name, _, value in (line.partition(":") for line in lines)}
    return {**found, "oom_score_adj": [Path(f"/proc/{pid}/oom_score_adj").read_text()]}


@pytest.mark.parametrize("job", ["page", "text", "pdf", "picture", "search"])
def test_a_worker_has_no_privilege_left(job: str) -> None:
    async def body() -> dict[str, list[str]]:
        workers = Workers()
        try:
            worker = await workers._take_worker(job)
            try:
                assert await worker.ready() == ()
                return status(worker.pid)
            finally:
                workers._end(worker)
        finally:
            await workers.close()

    found = asyncio.run(asyncio.wait_for(body(), 30))
    user = module.USER if ROOT else os.geteuid()
    assert (found["Uid"], found["Groups"] if ROOT else []) == ([str(user)] * 4, [])
    for name in ("CapInh", "CapPrm", "CapEff", "CapAmb", *(("CapBnd",) if ROOT else ())):
        assert int(found[name][0], 16) == 0, name
    assert (found["NoNewPrivs"], found["Seccomp"]) == (["1"], ["2"])
    assert int(found["oom_score_adj"][0]) >= 500


def test_missing_confinement_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    async def body() -> None:
        workers = Workers()
        workers._filter = b""
        try:
            for job in ("page", "text"):
                await done(workers, job, RawPage(b"x", "text/plain", "http://site/", "text"), ReadablePage)
        finally:
            await workers.close()

    asyncio.run(asyncio.wait_for(body(), 30))
    (record,) = caplog.records
    assert "without a system call filter (libseccomp is missing)" in record.getMessage()


# Does its documents, and prints the files opened meanwhile, except source lines of tracebacks
LISTENER = """if True:
    import sys
    import msgspec
    from toolgate.tools.builtin import worker_main as worker
    from toolgate.tools.reading.workers.worker import NoFinder
    from toolgate.tools.api.errors import ToolError
    EVENTS = ("open", "os.listdir", "os.scandir", "socket.__new__", "ctypes.dlopen", "_thread.start_new_thread")
    kind, prepare, work = worker.JOBS[sys.argv[1]]
    documents = msgspec.msgpack.decode(sys.stdin.buffer.read(), type=list[kind])
    opened = []
    prepare()
    sys.meta_path[:] = [NoFinder]
    sys.addaudithook(lambda event, given: opened.append(f"{event} {given[:1]}") if event in EVENTS else None)
    for document in documents:
        try:
            msgspec.msgpack.encode(work(document))
        except ToolError:
            pass
    print([event for event in opened if not event.endswith(".py',)")])
"""


@pytest.mark.parametrize("job", DOCUMENTS)
def test_no_document_needs_a_file_or_module_after_confinement(job: str) -> None:
    documents = list(DOCUMENTS[job]())
    given = msgspec.msgpack.encode(documents)
    ended = subprocess.run([sys.executable, "-c", LISTENER, job], input=given, capture_output=True, timeout=60)
    assert len(documents) >= 10
    assert (ended.stdout, ended.returncode) == (b"[]\n", 0), ended.stderr.decode()


def is_for_all(path: str) -> bool:
    """Return whether every user may run the program."""
    return all(folder.stat().st_mode & 0o001 for folder in (Path(path).resolve(), *Path(path).resolve().parents))


@pytest.mark.parametrize(
    ("label", "letters"),
    [
        ("shift_jis", "日本語"),
        ("gb2312", "简体中文"),
        ("euc-kr", "한국어"),
        ("tis-620", "ไทย"),
        ("windows-1251", "русский"),
    ],
)
def test_a_worker_knows_the_encodings_of_the_web(label: str, letters: str) -> None:
    """By their labels too: a confined worker can load no codec module."""
    raw = RawPage(letters.encode(label), f"text/plain; charset={label}", "http://site/", "text")

    async def work() -> ReadablePage:
        workers = Workers()
        try:
            return await done(workers, "text", raw, ReadablePage)
        finally:
            await workers.close()

    assert asyncio.run(work()).text == letters


@pytest.mark.skipif(not (ROOT and is_for_all(sys.executable)), reason="it takes root, and a Python that is not root's")
def test_a_server_of_no_privileges_confines_its_workers_too() -> None:
    script = """if True:
        import os
        from tests.tools.reading.workers.test_confinement import FILES, LOOKS, PROCESSES, SIGNALS, SOCKETS, WRITES
        from tests.tools.reading.workers.test_confinement import attempts, succeeded, taken_over
        lines = (*FILES, *WRITES, *SOCKETS, *PROCESSES, *SIGNALS, *LOOKS)
        with taken_over() as workers:
            print(succeeded(attempts(workers, *(line.format(server=os.getpid()) for line in lines))))
    """
    user = module.USER - 1
    given = {"user": user, "group": user, "extra_groups": (), "cwd": Path(__file__).parents[3]}
    ended = subprocess.run([sys.executable, "-B", "-c", script], capture_output=True, text=True, timeout=60, **given)
    assert (ended.stdout, ended.stderr) == ("{}\n", "")
