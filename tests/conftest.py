"""Fixtures: servers started on request, ended and checked after the test; and one shared server per module, for tests
that leave nothing behind."""

import contextlib
import gc
import shutil
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests import pairs
from tests.clients.chromium import browser
from tests.clients.raw_client import PATIENCE, ROOT, Server, served
from tests.clients.raw_http_client import Opener, Site, site, spoken
from tests.needed_features import needs_deleted
from tests.servers import compiled_pages, forked_command
from tests.servers.open_folder import open_folder
from tests.servers.postgres import Postgres, running_postgres
from tests.servers.state_limits import BUSY, CALL, set_limits
from toolgate.server.auth.login import accounts

PROBE = ("-p", str(ROOT / "tests" / "plugins"))
TRANSPORTS = ("stdio", "http", "sse")
OVER_ALL = (ROOT / "tests" / "server" / "protocol", ROOT / "tests" / "transports")  # also in `make test`
PACKAGES = {
    "bwrap": "bubblewrap",
    "ip": "iproute2",
    "redis-server": "redis-server",
    "rg": "ripgrep",
    "setfacl": "acl",
    "unshare": "util-linux",
}

LOG_SHOWN = 4_000  # characters of a log

gc.disable()  # objects from the imports stay
set_limits(PATIENCE, PATIENCE)
compiled_pages.keep_compiled()

SLOW = (  # the files that take 20 s or more, the slowest first: else one of them ends alone
    "escape/test_escapes.py",
    "tools/reading/browser/test_browser.py",
    "server/test_hanging_parts.py",
    "server/features/events/test_command_ends.py",
    "server/features/mounts/sign_in/test_elicitation.py",
    "server/calls/test_tasks.py",
    "watchdog/test_watchdog.py",
    "server/auth/test_pages.py",
    "transports/test_matrix.py",
    "transports/web/test_health.py",
    "transports/test_restart.py",
    "server/features/mounts/grants/test_client_credentials.py",
    "server/features/mounts/sign_in/test_sign_in.py",
    "server/features/replicas/test_replicas.py",
    "server/features/mounts/grants/test_exchange.py",
    "interop/test_python_sdk.py",
    "server/features/test_without.py",
    "transports/web/test_home.py",
    "transports/http/test_server.py",
    "transports/test_stdio.py",
    "escape/test_planning.py",
    "server/features/mounts/test_mounts.py",
    "tools/api/plugins/test_reload.py",
    "server/features/nodes/test_readers.py",
    "conformance/test_conformance.py",
    "server/features/clients/test_install.py",
    "tools/workspace/commands/test_disk_usage.py",
    "tools/workspace/processes/test_stopped.py",
    "server/state/sqlite/test_store.py",
    "interop/test_frameworks.py",
    "server/workspaces/test_idle_workspaces.py",
    "server/cli/sign_in/test_login.py",
    "docs/test_blocks.py",
    "server/state/test_damage.py",
    "server/cli/commands/test_user_and_client.py",
    "deploy/test_proxies.py",
    "server/auth/test_revocation_watch.py",
    "deploy/test_installers.py",
    "server/state/backup/test_replace.py",
    "server/protocol/test_failed_requests.py",
    "server/features/mounts/pins/test_modes.py",
    "deploy/test_blog_search.py",
    "server/features/postgres/test_database.py",
    "server/features/mounts/kept_secrets/test_secrets.py",
    "server/workspaces/test_retention.py",
    "server/features/replicas/test_processes.py",
    "server/protocol/test_protocol.py",
    "transports/web/test_approvals.py",
    "server/state/rows/test_callback_timer.py",
    "deploy/test_files_plugin_levels.py",
    "server/features/replicas/bus/test_redis_away.py",
    "server/features/postgres/test_transfer.py",
    "interop/test_oauth_typescript_sdk.py",
    "transports/web/test_screens.py",
    "server/protocol/test_result_halves.py",
    "deploy/test_wheel.py",
)


def pytest_ignore_collect(collection_path: Path) -> bool | None:
    is_ours = collection_path.is_relative_to(ROOT / "tests")
    return True if is_ours and needs_deleted(collection_path) else None


def pytest_addoption(parser: pytest.Parser) -> None:
    help = "start so many replicas behind nginx, on one PostgreSQL, Redis and node, in place of each HTTP server"
    parser.addoption("--replicas", type=int, default=1, help=help)
    parser.addoption("--part", default="1/1", help="K/N: run each N-th test, from the K-th on")


def pytest_configure(config: pytest.Config) -> None:
    if hasattr(config, "workerinput") or not config.getoption("numprocesses", None):
        forked_command.keep_preload()
    if config.getoption("replicas") > 1:
        from tests.servers.replicas import ReplicatedSites  # imports this module

        sites = ReplicatedSites(config.getoption("replicas"))
        Opener.open = sites.open
        config.add_cleanup(sites.close)
    told = "brief(*ids): of its parameters `make test` takes these, the first where none is named; the soak the others"
    config.addinivalue_line("markers", told)
    config.addinivalue_line("markers", "pairs: `make test` takes pairs of its parameters: tests/pairs.py")
    config.addinivalue_line(
        "markers", "rotated(n): `make test` takes n values of its parameter, each test the next ones"
    )
    config.addinivalue_line("markers", "programs(*names): it needs these, and fails without them; PACKAGES has them")
    config.addinivalue_line("markers", "alone: it is about what one server has for itself: not with --replicas")
    config.addinivalue_line("markers", "both: `make test` takes it with the other kind of Chromium, too")


@pytest.hookimpl(tryfirst=True)  # before the soak tests are deselected
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.getoption("replicas") > 1:
        items[:] = [item for item in items if item.get_closest_marker("alone") is None]
    _take_part(config.getoption("part"), items)
    order = {str(ROOT / "tests" / name): place for place, name in enumerate(SLOW)}
    items.sort(key=lambda item: order.get(str(item.path), len(order)))
    _brief(items)
    _leave_sse_to_the_soak(items)
    pairs.leave_to_the_soak(items)


def pytest_runtest_setup(item: pytest.Item) -> None:
    names = [name for mark in item.iter_markers("programs") for name in mark.args]
    missing = sorted({PACKAGES[name] for name in names if shutil.which(name) is None})
    if missing:
        pytest.fail(f"programs are missing: apt-get install {' '.join(missing)}", pytrace=False)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Report with a failure how its servers' logs end: the files may end with the run."""
    report = yield
    if report.failed and (folder := getattr(item, "funcargs", {}).get("tmp_path")) is not None:
        for log in sorted([*folder.glob("*.log"), *folder.glob("*/*.log")]):
            report.sections.append((f"end of {log}", log.read_text(errors="replace")[-LOG_SHOWN:]))
    return report


@pytest.hookimpl(trylast=True)  # its servers have ended
def pytest_runtest_teardown() -> None:
    ended, forked_command.leaks[:] = [*forked_command.leaks], []
    if ended:
        pytest.fail(f"servers {ended} were about to send a client's token to what is mounted: see their logs")


def pytest_collection_finish() -> None:
    gc.freeze()
    gc.enable()


def _take_part(part: str, items: list[pytest.Item]) -> None:
    """Leave each N-th item of `K/N`, from the K-th on: what runs everything for several Pythons shares it out so."""
    place, number = map(int, part.split("/"))
    items[:] = items[place - 1 :: number]


def _brief(items: list[pytest.Item]) -> None:
    taken: dict[str, list[str]] = {}
    for item in items:
        mark = item.get_closest_marker("brief")
        if mark is None or not isinstance(item, pytest.Function):
            continue
        given = item.callspec.id
        ids = taken.setdefault(item.nodeid.partition("[")[0], list(mark.args) or [given])
        if given not in ids:
            item.add_marker(pytest.mark.soak)


def _leave_sse_to_the_soak(items: list[pytest.Item]) -> None:
    """Have `make test` try over HTTP+SSE what is about messages and transports, the soak also what methods answer."""
    for item in items:
        callspec = getattr(item, "callspec", None)
        carriers = set() if callspec is None else {callspec.params.get(name) for name in ("connect", "everywhere")}
        if "sse" in carriers and not any(map(item.path.is_relative_to, OVER_ALL)):
            item.add_marker(pytest.mark.soak)


@pytest.fixture
def open_path() -> Iterator[Path]:
    """Like `tmp_path`, for other users too."""
    with open_folder() as folder:
        yield folder


@pytest.fixture
def real_state_limits() -> Iterator[None]:
    set_limits(CALL, BUSY)
    yield
    set_limits(PATIENCE, PATIENCE)


@pytest.fixture(autouse=True, scope="session")
def cheap_hashes() -> Iterator[None]:
    """Hash passwords cheaply in the tests' own process, as in the servers that it forks."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(accounts, "COST", {"time_cost": 1, "memory_cost": 64, "parallelism": 1})
        yield


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Server]]:
    """Start a server over stdio: `start(*options, revision=…, capabilities=…, answer=…)`."""
    with contextlib.ExitStack() as stack:

        def begin(*options: str, **how: Any) -> Server:
            return stack.enter_context(served(tmp_path, *options, **how))

        yield begin


@pytest.fixture
def probe(start: Callable[..., Server]) -> Callable[..., Server]:
    """Start a server that also has the tools of tests/plugins."""

    def begin(*options: str, **how: Any) -> Server:
        return start(*PROBE, *options, **how)

    return begin


@pytest.fixture
def listen(tmp_path: Path) -> Iterator[Callable[..., Site]]:
    """Start a server with the tools of tests/plugins that listens for HTTP: `listen(*options)`."""
    with contextlib.ExitStack() as stack:

        def begin(*options: str, **how: Any) -> Site:
            return stack.enter_context(site(tmp_path, *PROBE, *options, **how))

        yield begin


@pytest.fixture(scope="module")  # tests of other modules count the processes they see
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """A listening server for tests that leave nothing behind: they share its one principal."""
    with site(tmp_path_factory.mktemp("shared"), *PROBE) as listening:
        yield listening


@pytest.fixture(scope="session")
def postgres_files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder for the files of a new PostgreSQL, which all have copies of."""
    return tmp_path_factory.mktemp("postgres")


@pytest.fixture(scope="module")  # as above
def postgres(postgres_files: Path) -> Iterator[Postgres]:
    with running_postgres(postgres_files) as server:
        yield server


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    with browser() as launched:
        yield launched


@pytest.fixture(params=TRANSPORTS)
def connect(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Callable[..., Server]]:
    """Start a client on each transport in turn: `connect(*options, revision=…, capabilities=…, answer=…)`.

    Over HTTP it uses the shared server, unless options are given or `fresh=True`."""
    with contextlib.ExitStack() as stack:

        def begin(*options: str, fresh: bool = False, **how: Any) -> Server:
            if request.param == "stdio":
                return stack.enter_context(served(tmp_path, *PROBE, *options, **how))
            own = fresh or bool(options)
            listening = (
                stack.enter_context(site(tmp_path, *PROBE, *options)) if own else request.getfixturevalue("shared")
            )
            return stack.enter_context(spoken(listening, request.param, owned=own, **how))

        yield begin
