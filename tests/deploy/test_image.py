"""deploy/Dockerfile carried out, and the image that comes of it run as an engine would. Takes minutes, and Debian's and
Python's packages; what is downloaded is kept in build/image.

What this leaves unproven of the Dockerfile, since no engine reads it:

- `FROM`: debootstrap's minbase is the base here; debian:bookworm-slim is the same less manuals and translations.
- `RUN --mount=type=cache`: a folder stands in; parallel builds are not tried.
- layers and their caching; what BuildKit sends of the clone goes by tests/deploy/image.py's reading of .dockerignore.
- `VOLUME`: that a new volume gets the owner of the folder it covers; the folder here is given that owner.
- `HEALTHCHECK`: its command is run, its times are not; `LABEL`, `EXPOSE`: that engines read them.
- `docker run`: a network of its own, control groups, AppArmor. The filter goes by libseccomp, as it does with runc."""

import asyncio
import http.server
import os
import shutil
import stat
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.clients.raw_client import ROOT
from tests.deploy import test_container as quick
from tests.deploy.engine import Container, Root, container, engine_filter
from tests.deploy.image import Build
from tests.deploy.test_container import CAPABILITIES, DOCKERFILE, IMAGE, PROFILE
from tests.interop.official_clients import Negotiation
from tests.interop.sign_in_server import SignInServer
from tests.interop.test_oauth_python_sdk import StoredTokens, connected, text
from tests.server.auth.http_browser import Person

pytestmark = pytest.mark.soak

UNCHECKED = (0b01).to_bytes(4, "little")  # flags of a compiled file: by hash, which is not compared (PEP 552)
KEPT = ROOT / "build" / "image"
PAGE = b"<!doctype html><title>t</title><p id=p>plain</p><script>p.textContent = 'by ' + 'script'</script>"

# On the image's own root too; what ends the server is last, below
test_somebody_signs_in = quick.test_a_person_signs_in_and_commands_run_in_a_sandbox_without_any_privilege
test_the_health_check_says_whether_it_takes_work = quick.test_the_health_check_says_whether_it_takes_work
test_nothing_can_be_written_but_the_volume = quick.test_nothing_can_be_written_but_the_volume_and_memory


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    if os.geteuid() != 0:
        pytest.skip("only root can build images")
    assert shutil.which("debootstrap"), "debootstrap is missing: apt-get install debootstrap"
    folder = tmp_path_factory.mktemp("image")
    build = Build(ROOT, folder, KEPT)
    assert build.run(DOCKERFILE) == IMAGE
    yield build.root
    shutil.rmtree(folder)


@pytest.fixture(scope="module")
def running(built: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Container]:
    environment = {"TOOLGATE_ALLOW_PRIVATE": "127.0.0.1"}
    folder = tmp_path_factory.mktemp("running")
    with container(IMAGE, Root(built), folder, environment=environment, filter=engine_filter(PROFILE)) as made:
        assert made.serving(), made.log()
        yield made


@pytest.fixture
def page() -> Iterator[str]:
    class Page(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("content-type", "text/html")
            self.send_header("content-length", str(len(PAGE)))
            self.end_headers()
            self.wfile.write(PAGE)

        def log_message(self, *_: object) -> None: ...

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Page)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}/"
    server.shutdown()
    server.server_close()
    thread.join()


def test_nothing_in_it_gains_privileges_and_nothing_is_there_that_only_made_it(built: Path) -> None:
    files = [path for path in built.rglob("*") if not path.is_symlink()]
    modes = {path: path.stat() for path in files}
    assert [
        path for path, found in modes.items() if found.st_mode & (stat.S_ISUID | stat.S_ISGID) and path.is_file()
    ] == []
    assert {path for path, found in modes.items() if found.st_uid == IMAGE.uid} == {
        built / "data",
        built / "run" / "toolgate-node",
    }
    program = built / "opt" / "toolgate"
    assert [path for path in files if path.is_relative_to(program) and modes[path].st_mode & 0o022] == []
    assert not list(program.glob("lib/python3.*/site-packages/pip")) and not (built / "src").exists()
    left = [str(path.relative_to(built)) for path in (built / "root").rglob("*") if path.is_file()]
    assert set(left) <= {"root/.bashrc", "root/.profile"}  # nothing of this machine's


def test_each_module_is_compiled_and_python_does_not_ask_for_its_time(built: Path) -> None:
    sources = [path for path in (built / "opt" / "toolgate").rglob("*.py") if path.parent.name != "bin"]
    compiled = [path.parent / "__pycache__" / f"{path.stem}.cpython-311.pyc" for path in sources]
    assert len(sources) > 1000 and [path for path in compiled if not path.exists()] == []
    assert {path.read_bytes()[4:8] for path in compiled} == {UNCHECKED}
    assert {path.stat().st_mode & 0o044 for path in compiled} == {0o044}


def test_its_chromium_shows_a_page_from_within_its_own_sandbox(running: Container, page: str) -> None:
    async def main() -> str:
        gate = SignInServer(running, Person(running), "")  # type: ignore[arg-type]  # it has what they look at
        async with connected(gate, StoredTokens(), Negotiation("http", "auto")) as client:
            return text(await client.call_tool("ReadDocs", {"url": page}))

    assert "by script" in asyncio.run(main())
    assert "WITHOUT its own sandbox" not in running.log()


test_the_end_is_orderly = quick.test_orphans_are_reaped_and_the_end_is_orderly


def test_as_root_with_few_capabilities_the_engines_defaults_suffice(built: Path, tmp_path: Path) -> None:
    masked = engine_filter(PROFILE, spaces=False)
    with container(IMAGE, Root(built), tmp_path, user=0, capabilities=CAPABILITIES, masked=True, filter=masked) as made:
        assert made.serving(), made.log()
        assert made.execute("toolgate", "health").stdout == "ready\n"
        assert made.stop() == 0
    assert "sandbox uid" in made.log()
