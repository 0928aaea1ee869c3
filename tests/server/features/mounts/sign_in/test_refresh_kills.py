"""A server that is killed during sign-ins and refreshes: a far server that rotates its tokens sees none twice, and what
was lost is said.

`make soak` kills it 200 times, each time at another moment.
"""

import contextlib
import http.client
import random
import sqlite3
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.clients.raw_client import eventually
from tests.clients.raw_http_client import Site
from tests.server.auth.minted_tokens import Signed
from tests.server.features.mounts.mounted import url_mount, write_config
from tests.server.features.mounts.sign_in.app import disconnect
from tests.server.features.mounts.sign_in.far_sign_in import FarSignIn, far_sign_in
from tests.server.features.mounts.sign_in.test_sign_in import AUTH, Scene, come_back
from tests.servers.reserved_port import reserved_port

LOST = "what became of its last refresh is not known"
KILLS = 200
SPREAD = 0.3  # seconds after a refresh has begun, in which a kill comes


class KilledServer:
    """A server with a connection of ada's, that is killed and started again on its state and port."""

    def __init__(self, folder: Path, far: FarSignIn, port: int) -> None:
        self.far = far
        self._folder = folder / "server"
        self._folder.mkdir()
        config = write_config(folder, url_mount(f"{far.origin}/mcp", "far", *AUTH))
        self._options = ("--auth", "oauth", "--port", str(port), *config)
        self.site = Site(self._folder, *self._options)
        self._signed = Signed(self.site)
        self.scene = Scene(self._signed, far)
        self.connect()

    def connect(self) -> None:
        self.scene.connect(self.scene.ada)
        self.scene.wait_listed(self.scene.ada)

    def kill(self) -> None:
        self.site.kill()

    def start(self) -> None:
        """Start it again, a minute later: a refresh without an answer is given up by then."""
        self.scene.change("UPDATE mount_connection SET refreshing_since = refreshing_since - 60")
        self.site = self._signed.site = Site(self._folder, *self._options)
        self.scene.ada.approve()  # a session ends with the server, and a token after a while

    def find_outcome(self) -> str:
        """Return what became of the connection: "kept" or "lost"."""
        found = list[str]()

        def is_known() -> bool:
            if "far__whoami" in self.scene.list_far(self.scene.ada) and self.scene.call(self.scene.ada) == "ada-there":
                found.append("kept")
            elif LOST in self.scene.ada.browser().get("/").text:
                found.append("lost")
            return bool(found)

        assert eventually(is_known), self.site.log()
        return found[0]

    def call(self) -> None:
        """Call until it is killed."""
        with contextlib.suppress(OSError, http.client.HTTPException, ValueError):
            while True:
                self.scene.call(self.scene.ada)


@pytest.fixture
def killed(tmp_path: Path) -> Iterator[KilledServer]:
    with far_sign_in() as far, reserved_port() as port:
        opened = KilledServer(tmp_path, far, port)
        try:
            yield opened
        finally:
            far.refresh_may_end.set()
            opened.kill()


def test_a_refresh_that_a_kill_cut_off_is_not_sent_again(killed: KilledServer) -> None:
    far = killed.far
    for _ in range(3):
        used, sent = len(far.used), far.refreshes
        far.refresh_may_end.clear()
        far.end_access()
        calling = threading.Thread(target=killed.call)
        calling.start()
        assert eventually(lambda sent=sent: far.refreshes > sent)  # type: ignore[misc]
        killed.kill()
        calling.join()
        far.refresh_may_end.set()
        assert eventually(lambda used=used: len(far.used) > used)  # type: ignore[misc]
        killed.start()
        assert killed.find_outcome() == "lost"
        killed.connect()
    assert far.reused == 0


def test_a_kill_between_refreshes_loses_nothing(killed: KilledServer) -> None:
    for _ in range(3):
        killed.kill()
        killed.far.end_access()
        killed.start()
        assert killed.find_outcome() == "kept"
    assert (killed.far.refreshes, killed.far.reused) == (3, 0)


@contextlib.contextmanager
def locked(state: Path) -> Iterator[None]:
    """Let nobody else write to a state."""
    with contextlib.closing(sqlite3.connect(state / "state.db", isolation_level=None)) as database:
        database.execute("BEGIN IMMEDIATE")
        yield


@pytest.mark.brief("True")
@pytest.mark.parametrize("is_connected", [True, False])
def test_a_kill_before_a_sign_in_is_stored_loses_that_one_alone(killed: KilledServer, is_connected: bool) -> None:
    far, scene = killed.far, killed.scene
    if not is_connected:
        disconnect(scene.ada)
    issued, redeemed, browser = len(far.access), far.redeemed, scene.ada.browser()
    answer = scene.visit(scene.leave(browser).location)
    far.code_may_end.clear()

    def come_back_in_vain() -> None:
        with pytest.raises((OSError, http.client.HTTPException)):
            come_back(browser, answer)

    coming = threading.Thread(target=come_back_in_vain)
    coming.start()
    assert eventually(lambda: len(far.access) > issued)
    with locked(scene.state):
        far.code_may_end.set()
        assert eventually(lambda: far.redeemed > redeemed)
        killed.kill()
    coming.join()
    killed.start()
    again = come_back(scene.ada.browser(), answer)
    assert (again.status, "begin again" in again.text) == (400, True)
    if is_connected:
        assert killed.find_outcome() == "kept"
    else:
        assert "not connected" in scene.ada.browser().get("/").text
        assert scene.call(scene.ada).startswith("SIGN_IN_REQUIRED: ")
    killed.connect()
    assert scene.call(scene.ada) == "ada-there" and far.reused == 0


@pytest.mark.soak
def test_rotation_is_never_taken_for_theft_in_200_kills(killed: KilledServer) -> None:
    far, moments = killed.far, random.Random(42)
    far.lifetime, far.refresh_takes = 2.0, 0.1
    outcomes: Counter[str] = Counter()
    for number in range(KILLS):
        sent = far.refreshes
        far.end_access()
        calling = threading.Thread(target=killed.call)
        calling.start()
        assert eventually(lambda sent=sent: far.refreshes > sent), killed.site.log()  # type: ignore[misc]
        time.sleep(moments.uniform(0.0, SPREAD))
        killed.kill()
        calling.join()
        killed.start()
        outcome = killed.find_outcome()
        outcomes[outcome] += 1
        assert far.reused == 0, (number, outcomes)
        if outcome == "lost":
            killed.connect()
    assert outcomes["lost"] and outcomes["kept"], outcomes
