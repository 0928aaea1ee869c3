"""Ten minutes of mixed load on a server over HTTP with sign-in and on one over stdio: their resources stay flat once
warm."""

import contextlib
import http.server
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from tests.clients.raw_client import PATIENCE, eventually, served
from tests.server.auth.minted_tokens import signed_site
from tests.soak.callers import Caller, Host, Person
from tests.soak.sampling import Sample, rows, sampled, slope, table

PEOPLE = ("ada", "bob", "cyd", "dan")
SAMPLES = 30  # 20 seconds apart in ten minutes
WARM = 0.4  # of the time: sessions and ended tasks reach their limits
# Per minute. Cyclic garbage is collected after some 3,000 calls, and reaches 8 MiB until then. What the allocators keep
# reaches its highest mark after a quarter of an hour, and stays there
MOST = {"rss": 2048.0, "pss": 2048.0, "files": 2.0, "threads": 0.5, "children": 2.0, "temporary": 1.0, "rows": 30.0}
PAGE = b"<title>Lighthouses</title><article><h1>Lighthouses</h1><p>A lighthouse shows a light to ships at night.</p>"


@contextlib.contextmanager
def paged() -> Iterator[str]:
    """A page on loopback."""

    class Paging(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200 if self.path == "/" else 404)
            self.send_header("Content-Type", "text/html")
            self.send_header("Content-Length", str(len(PAGE)))
            self.end_headers()
            self.wfile.write(PAGE)

        def log_message(self, format: str, *args: object) -> None: ...

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Paging)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/"
    finally:
        server.shutdown()
        server.server_close()


@pytest.mark.soak
@pytest.mark.parametrize("seconds", [600.0])
def test_nothing_grows_under_a_mixed_load(tmp_path: Path, seconds: float) -> None:
    load(tmp_path, seconds)


def load(folder: Path, seconds: float) -> None:
    (folder / "tmp").mkdir()
    web = ("--browser", "none", "--allow-private", "127.0.0.1")
    env = {"TMPDIR": str(folder / "tmp")}
    with (
        paged() as page,
        signed_site(folder, *web, workspace=False, env=env) as signed,
        served(_made(folder / "stdio"), *web, env=env) as program,
    ):
        people = [Person(name, page, signed.site.port, signed.token(name, f"{name}-client")) for name in PEOPLE]
        callers: list[Caller] = [*people, Host("program", page, program)]
        watched = {"http": (signed.site.process.pid, signed.site.state), "stdio": (program.process.pid, program.state)}
        taken: dict[str, list[Sample]] = {name: [] for name in watched}
        began = time.monotonic()
        for caller in callers:
            caller.start()
        for number in range(1, SAMPLES + 1):
            time.sleep(max(0.0, began + number * seconds / SAMPLES - time.monotonic()))
            for name, (pid, state) in watched.items():
                taken[name].append(sampled(pid, state, folder / "tmp", began))
        for caller in callers:
            caller.end()
        _tell(taken, callers, {name: rows(state) for name, (_, state) in watched.items()})
        faults = [fault for caller in callers for fault in caller.faults]
        assert faults == [], faults[:20]
        for name, (pid, state) in watched.items():
            grows = {what: slope(_warm(taken[name]), what) for what in MOST}
            assert {what: value for what, value in grows.items() if value > MOST[what]} == {}, name
            assert eventually(lambda pid=pid, state=state: sampled(pid, state, folder / "tmp", began).zombies == 0)
    assert eventually(lambda: list((folder / "tmp").iterdir()) == [], PATIENCE)


def _made(folder: Path) -> Path:
    folder.mkdir()
    return folder


def _warm(samples: Sequence[Sample]) -> Sequence[Sample]:
    return samples[int(len(samples) * WARM) :]


def _tell(taken: dict[str, list[Sample]], callers: Sequence[Caller], held: object) -> None:
    for name, samples in taken.items():
        print(f"\n{name}\n{table(samples)}")
        print("a minute:", {what: round(slope(_warm(samples), what), 2) for what in MOST})
    done: Counter[str] = Counter()
    for caller in callers:
        done.update(caller.done)
    print("done:", dict(sorted(done.items())))
    print("rows:", held)
