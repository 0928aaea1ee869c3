"""The client that this server is at an authorization server: another one in the table, and what becomes of people."""

import base64
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.clients.raw_client import eventually
from tests.server.features.mounts.kept_secrets.test_secrets import set_secret
from tests.server.features.mounts.mounted import url_mount, write_config
from tests.server.features.mounts.sign_in.far_sign_in import FarSignIn
from tests.server.features.mounts.sign_in.test_sign_in import AUTH, Scene, open_scene
from tests.server.features.mounts.sign_in.test_sign_in import far as far
from tests.transports.web.test_home import _csrf as find_csrf

FIRST, SECOND = "s3cret-of-the-first", "s3cret-of-the-second"
UNKNOWN = (401, {"error": "invalid_client"})


class ClientScene(Scene):
    """A server whose operator names a client, or none, and another one later."""

    folder: Path

    def name_client(self, id: str, secret: str) -> None:
        """Return once people sign in with this client."""
        self.far.static[id] = secret
        set_secret(self.state, "FAR", secret)
        write_config(self.folder, create_table(self.far, id))
        browser = self.ada.browser()
        assert eventually(lambda: f"client_id={id}&" in self.leave(browser).location)
        self.wait_listed(self.ada)


def create_table(far: FarSignIn, id: str) -> str:
    lines = (f'client_id = "{id}"', 'client_secret = "${secret:FAR}"', f'audience = "{far.origin}"') if id else ()
    return url_mount(f"{far.origin}/mcp", "far", *AUTH, *lines)


@pytest.fixture
def client() -> str:
    return "first"


@pytest.fixture
def scene(tmp_path: Path, far: FarSignIn, client: str) -> Iterator[ClientScene]:
    with open_scene(tmp_path, far, create_table(far, client), ClientScene) as opened:
        opened.folder = tmp_path
        set_secret(opened.state, "FAR", FIRST)
        far.static = {"first": FIRST}
        opened.connect(opened.ada)
        opened.wait_listed(opened.ada)
        yield opened


@pytest.mark.rotated(1)
@pytest.mark.parametrize("client", ["first", ""])
def test_a_connection_of_a_client_that_is_unknown_and_not_the_tables_is_made_again(scene: ClientScene) -> None:
    scene.name_client("second", SECOND)
    scene.far.end_access()
    scene.far.answers = [UNKNOWN] * 9
    told = "it was made with another client than the client_id of its mount"
    text = scene.call(scene.ada)
    assert text.startswith("SIGN_IN_REQUIRED") and f"connect it again ({told})" in text, text
    assert told in scene.ada.browser().get("/").text
    scene.far.answers.clear()
    scene.connect(scene.ada)
    assert scene.call(scene.ada) == "ada-there"


def test_a_client_of_the_table_that_is_unknown_ends_no_connection(scene: ClientScene) -> None:
    scene.far.end_access()
    scene.far.answers = [UNKNOWN] * 9
    assert "its token can't be refreshed now: it says invalid_client" in scene.call(scene.ada)
    scene.far.answers.clear()
    assert scene.call(scene.ada) == "ada-there"


@pytest.mark.parametrize("client", [""])
def test_a_connection_of_a_registered_client_goes_on_beside_the_tables(scene: ClientScene) -> None:
    scene.name_client("second", SECOND)
    scene.far.seen.clear()
    scene.far.end_access()
    assert scene.call(scene.ada) == "ada-there"
    (form,) = [each for each in scene.far.seen if "grant_type=refresh_token" in each]
    assert "client_id=c-0" in form and not has_shown(scene.far, SECOND)


@pytest.mark.rotated(1)
@pytest.mark.parametrize("client", ["first", ""])
def test_a_connection_of_another_client_is_revoked_without_the_secret_of_the_tables(scene: ClientScene) -> None:
    scene.name_client("second", SECOND)
    scene.far.seen.clear()
    browser = scene.ada.browser()
    ended = browser.post("/", {"csrf": find_csrf(browser.get("/").text), "disconnect": "far"})
    assert ended.status == 200
    assert eventually(lambda: len(scene.far.revoked) == 1)
    assert not has_shown(scene.far, SECOND)


def has_shown(far: FarSignIn, secret: str) -> bool:
    """Return whether a secret came in a form or a header."""
    headers = [base64.b64decode(each[6:]).decode() for each in far.seen if each.startswith("Basic ")]
    return any(secret in each for each in (*far.seen, *headers))
