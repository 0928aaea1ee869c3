"""People sign in at a mounted server over HTTP+SSE: there and back, refreshes, scopes, and ends, as over Streamable
HTTP."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.clients.raw_client import eventually
from tests.server.auth.minted_tokens import signed_site
from tests.server.features.mounts.mounted import url_mount, write_config
from tests.server.features.mounts.sign_in.far_sse import FarSse, far_sse
from tests.server.features.mounts.sign_in.test_sign_in import AUTH, CONNECT, Scene
from tests.servers import forked_command
from tests.servers.forked_command import COMMAND
from tests.transports.web.test_home import _csrf as find_csrf

pytestmark = pytest.mark.rotated(1)  # the transports


@pytest.fixture
def far() -> Iterator[FarSse]:
    with far_sse() as opened:
        yield opened


@pytest.fixture(params=["sse", "http"])
def scene(request: pytest.FixtureRequest, tmp_path: Path, far: FarSse) -> Iterator[Scene]:
    """A mount that says what it speaks, and one where it is found."""
    table = url_mount(f"{far.origin}/mcp", "far", *AUTH, *(('type = "sse"',) if request.param == "sse" else ()))
    with signed_site(tmp_path / "server", *write_config(tmp_path, table)) as signed:
        yield Scene(signed, far)


def test_a_person_connects_and_calls_and_ends_it(scene: Scene) -> None:
    assert scene.list_far(scene.ada) == {CONNECT}
    assert "SIGN_IN_REQUIRED" in scene.call(scene.ada, CONNECT)
    assert "<code>read</code>" in scene.ada.browser().get("/mounts/connect?name=far").text
    for who in (scene.ada, scene.bob):
        assert scene.connect(who, f"{who.name}-there").status == 200
        scene.wait_listed(who)
    for _ in range(2):
        assert [scene.call(who) for who in (scene.ada, scene.bob)] == ["ada-there", "bob-there"]
    browser = scene.ada.browser()
    ended = browser.post("/", {"csrf": find_csrf(browser.get("/").text), "disconnect": "far"})
    assert ended.status == 200 and eventually(lambda: len(scene.far.revoked) == 1)
    assert "SIGN_IN_REQUIRED" in scene.call(scene.ada)
    assert scene.call(scene.bob) == "bob-there"


def test_a_token_is_refreshed_at_a_stream_that_is_open(scene: Scene) -> None:
    scene.connect(scene.ada)
    scene.wait_listed(scene.ada)
    assert scene.call(scene.ada) == "ada-there"
    scene.far.end_access()
    assert scene.call(scene.ada) == "ada-there"
    assert (scene.far.refreshes, scene.far.reused) == (1, 0)


def test_a_token_that_can_not_be_refreshed_is_said_with_the_link(scene: Scene) -> None:
    scene.connect(scene.ada)
    scene.wait_listed(scene.ada)
    scene.far.end_access()
    scene.far.refresh.clear()
    text = scene.call(scene.ada)
    assert "SIGN_IN_REQUIRED: connect it again (it says invalid_grant)" in text and "/mounts/connect?name=far" in text
    assert "ended" in scene.ada.browser().get("/").text
    scene.connect(scene.ada)
    assert eventually(lambda: scene.call(scene.ada) == "ada-there")


@pytest.mark.pairs
@pytest.mark.parametrize("is_new", [False, True])
def test_a_call_or_a_stream_that_needs_more_rights_says_so(scene: Scene, far: FarSse, is_new: bool) -> None:
    scene.connect(scene.ada)
    scene.wait_listed(scene.ada)
    assert scene.call(scene.ada) == "ada-there"
    far.needed_scope = "write"
    if is_new:
        far.end_streams()
    for _ in range(2):
        assert eventually(lambda: "it wants more rights: write" in scene.call(scene.ada)), scene.call(scene.ada)
    assert "<code>write</code>" in scene.ada.browser().get("/mounts/connect?name=far").text
    scene.connect(scene.ada)
    assert eventually(lambda: scene.call(scene.ada) == "ada-there"), scene.call(scene.ada)


def test_who_connects_as_somebody_else_has_another_stream(scene: Scene) -> None:
    scene.connect(scene.ada)
    scene.wait_listed(scene.ada)
    assert scene.call(scene.ada) == "ada-there"
    scene.connect(scene.ada, "ada-elsewhere")
    assert eventually(lambda: scene.call(scene.ada) == "ada-elsewhere"), scene.call(scene.ada)


def test_a_mount_without_auth_is_told_that_it_needs_it(tmp_path: Path, far: FarSse) -> None:
    options = write_config(tmp_path, url_mount(f"{far.origin}/mcp", "far", 'type = "sse"'))
    env = {"PATH": "/usr/bin:/bin", "HOME": str(tmp_path)}
    words = [COMMAND, "mount", "test", "far", "--state", str(tmp_path / "state"), *options]
    done = forked_command.run(words, "", cwd=tmp_path, env=env)
    assert done.returncode == 1 and "SIGN_IN_REQUIRED: it wants a sign-in" in done.stdout, done
