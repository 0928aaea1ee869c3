"""Run the tests of several files at a time, in forks of a process that has collected all of them: `--workers 6`.

Collecting takes some seconds of processor time. Workers that are started collect all of it again, each.
"""

import os
import signal
import traceback
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from itertools import pairwise
from multiprocessing.connection import Connection, Pipe, wait
from typing import Any

import pytest


class Worker:
    """A fork that runs the tests of one file after the other, as the process that forked it sees it."""

    def __init__(self, pid: int, connection: Connection, waiting: Sequence[pytest.Item]) -> None:
        self.pid = pid
        self.connection = connection
        self.waiting = deque(waiting)  # what it was told to run, and has not reported the end of
        self.last: pytest.Item | None = None

    def note_end(self) -> None:
        self.last = self.waiting.popleft()


class Workers:
    """Forks that share out the files of a session, the first file first."""

    def __init__(self, session: pytest.Session, count: int) -> None:
        files: dict[object, list[pytest.Item]] = {}
        for item in session.items:
            files.setdefault(item.path, []).append(item)
        self._session = session
        self._files = [*files.values()]
        self._next = iter(range(len(self._files)))
        self._count = min(count, len(self._files))
        self._workers: dict[Connection, Worker] = {}
        self._numbers = iter(range(1_000_000))

    def run(self) -> None:
        """Run all tests, and report each. Raises what the session stops for."""
        try:
            for _ in range(self._count):
                self._fork([])
            while self._workers:
                for ready in wait([*self._workers]):
                    assert isinstance(ready, Connection)
                    self._hear(self._workers[ready])
                    if self._session.shouldfail:
                        raise self._session.Failed(self._session.shouldfail)
                    if self._session.shouldstop:
                        raise self._session.Interrupted(self._session.shouldstop)
        finally:
            for worker in self._workers.values():
                os.kill(worker.pid, signal.SIGTERM)
                os.waitpid(worker.pid, 0)

    def _fork(self, items: Sequence[pytest.Item]) -> None:
        """Start a worker. It runs these tests first, and then asks for a file."""
        ours, its = Pipe()
        number = next(self._numbers)
        base = self._session.config._tmp_path_factory.getbasetemp()  # type: ignore[attr-defined]
        _drop_captured(self._session.config)
        pid = os.fork()
        if pid:
            its.close()
            self._workers[ours] = Worker(pid, ours, items)
            return
        code = 1
        try:
            for other in (ours, *self._workers):
                other.close()
            with _become_worker(self._session.config, its, base / f"worker-{number}"):
                _run_tests(self._session, its, self._files, items)
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)

    def _hear(self, worker: Worker) -> None:
        try:
            message = worker.connection.recv()
        except (EOFError, ConnectionResetError):
            self._end(worker)
            return
        hook = self._session.config.hook
        if message is None:
            place = next(self._next, None)
            worker.waiting += [] if place is None else self._files[place]
            with suppress(BrokenPipeError):  # it is about to be found dead
                worker.connection.send(place)
            return
        worker.note_end()
        for data in message:
            report = hook.pytest_report_from_serializable(config=self._session.config, data=data)
            hook.pytest_runtest_logreport(report=report)

    def _end(self, worker: Worker) -> None:
        """Note the end of a worker. One that has died fails the test that it ran, and another runs the rest."""
        del self._workers[worker.connection]
        worker.connection.close()
        code = os.waitstatus_to_exitcode(os.waitpid(worker.pid, 0)[1])
        if code == 0 and not worker.waiting:
            return
        item = worker.waiting.popleft() if worker.waiting else worker.last
        assert item is not None, f"a worker ended with {code} before its first test"
        text = f"the process that ran it ended with {code}"
        report = pytest.TestReport(item.nodeid, item.location, {}, "failed", text, "teardown")
        self._session.config.hook.pytest_runtest_logreport(report=report)
        if worker.waiting:
            self._fork([*worker.waiting])


# -- in the fork


def _run_tests(
    session: pytest.Session,
    connection: Connection,
    files: Sequence[Sequence[pytest.Item]],
    items: Sequence[pytest.Item],
) -> None:
    """Run tests, and those of the files that are asked for. The next file is known before the last test of one ends: it
    may need the same fixtures."""

    def ask() -> Sequence[pytest.Item]:
        connection.send(None)
        place = connection.recv()
        return [] if place is None else files[place]

    items = items or ask()
    while items:
        following: Sequence[pytest.Item] = []
        for item, other in pairwise([*items, None]):
            assert item is not None
            if other is None:
                following = ask()
            after = other or next(iter(following), None)
            session.config.hook.pytest_runtest_protocol(item=item, nextitem=after)
        items = following


@contextmanager
def _become_worker(config: pytest.Config, connection: Connection, folder: Any) -> Iterator[None]:
    """Take what a fork shares with the others in its own hands: captured output, temporary files and the terminal."""
    folder.mkdir(mode=0o700)
    config._tmp_path_factory._basetemp = folder  # type: ignore[attr-defined]
    with ExitStack() as stack:
        terminal = config.pluginmanager.get_plugin("terminalreporter")
        terminal._tw._file = stack.enter_context(open(os.devnull, "w"))
        capture = config.pluginmanager.get_plugin("capturemanager")
        capture.stop_global_capturing()
        capture.start_global_capturing()
        config.pluginmanager.register(_Reporter(config, connection))
        yield
        config._ensure_unconfigure()  # what has been raised where no test could see it is raised here


def _drop_captured(config: pytest.Config) -> None:
    """Forget the output so far: each fork would repeat it."""
    capture = config.pluginmanager.get_plugin("capturemanager")
    if capture.is_globally_capturing():
        capture.read_global_capture()


class _Reporter:
    """Send the reports of a worker to the process that forked it, those of one test together."""

    def __init__(self, config: pytest.Config, connection: Connection) -> None:
        self._config = config
        self._connection = connection
        self._reports: list[Any] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        hook = self._config.hook
        self._reports.append(hook.pytest_report_to_serializable(config=self._config, report=report))
        if report.when == "teardown":
            self._connection.send(self._reports)
            self._reports = []
