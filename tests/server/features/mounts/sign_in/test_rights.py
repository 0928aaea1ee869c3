"""The rights of a person's connection: asked for, lacking at a call, and added to those that are there."""

from urllib.parse import parse_qsl, urlsplit

import pytest

from tests.server.features.mounts.sign_in.test_sign_in import Scene, come_back
from tests.server.features.mounts.sign_in.test_sign_in import far as far
from tests.server.features.mounts.sign_in.test_sign_in import lines as lines
from tests.server.features.mounts.sign_in.test_sign_in import scene as scene
from tests.servers.home_page_server import AppUser
from tests.transports.web.test_home import _csrf as find_csrf


def test_a_server_that_wants_more_rights_is_connected_again(scene: Scene) -> None:
    scene.connect(scene.ada)
    scene.wait_listed(scene.ada)
    scene.far.needed_scope = "write"
    for _ in range(2):
        assert "it wants more rights: write" in scene.call(scene.ada)
    assert "connected</b> since" in scene.ada.browser().get("/").text
    scene.connect(scene.ada)
    assert scene.call(scene.ada) == "ada-there"
    words = [f"right-{number}-{'x' * 70}" for number in range(20)]
    scene.far.needed_scope = " ".join(words)
    told = scene.call(scene.ada)
    assert f"it wants more rights: {words[0]}" in told and words[2] not in told


def find_asked(scene: Scene, who: AppUser | None = None) -> dict[str, str]:
    """Return the query with which a person leaves for the authorization server."""
    return dict(parse_qsl(urlsplit(scene.leave((who or scene.ada).browser()).location).query))


def list_asked(scene: Scene) -> str:
    """Return the scopes that a sign-in asks for."""
    return find_asked(scene)["scope"]


def test_more_rights_add_to_those_that_a_person_has(scene: Scene) -> None:
    scene.connect(scene.ada)
    scene.wait_listed(scene.ada)
    for needed in ("write", "admin"):
        scene.far.needed_scope = needed
        assert f"it wants more rights: {needed}" in scene.call(scene.ada)
        scene.connect(scene.ada)
        assert scene.call(scene.ada) == "ada-there"
    scene.far.needed_scope = "write"
    assert scene.call(scene.ada) == "ada-there"


def test_rights_that_two_calls_lack_are_asked_for_together(scene: Scene) -> None:
    scene.connect(scene.ada)
    scene.wait_listed(scene.ada)
    for needed in ("write", "admin"):
        scene.far.needed_scope = needed
        assert f"it wants more rights: {needed}" in scene.call(scene.ada)
    assert list_asked(scene) == "read admin write"


def test_a_connection_that_has_ended_asks_for_its_rights_no_more(scene: Scene) -> None:
    scene.far.grants = 'read write "'
    scene.connect(scene.ada)
    scene.wait_listed(scene.ada)
    assert list_asked(scene) == "read write"
    scene.far.end_access()
    scene.far.refresh.clear()
    assert "connect it again" in scene.call(scene.ada)
    assert list_asked(scene) == "read"


def test_a_call_whose_token_was_renewed_may_lack_rights(scene: Scene) -> None:
    scene.connect(scene.ada)
    scene.wait_listed(scene.ada)
    scene.far.needed_scope = "write"
    scene.far.end_access()
    assert "it wants more rights: write" in scene.call(scene.ada)


@pytest.mark.parametrize(
    "needs",
    [
        ("Bearer error=insufficient_scope, scope={}",),
        ('Bearer error="insufficient_scope", scope="{}"', 'Basic realm="far"'),
        ('Basic realm="far", Bearer error="insufficient_scope", scope={}',),
    ],
)
def test_rights_are_read_from_each_way_to_write_a_challenge(scene: Scene, needs: tuple[str, ...]) -> None:
    scene.connect(scene.ada)
    scene.wait_listed(scene.ada)
    scene.far.needed_scope, scene.far.needs = "write", needs
    assert "it wants more rights: write" in scene.call(scene.ada)
    assert list_asked(scene) == "read write"


def test_refresh_tokens_are_asked_for_where_the_authorization_server_has_a_scope_for_them(scene: Scene) -> None:
    scene.far.metadata = {"scopes_supported": [*(f"scope-{number}" for number in range(99)), "offline_access"]}
    asked = find_asked(scene)
    assert (asked["scope"], asked["prompt"]) == ("read offline_access", "consent")
    scene.connect(scene.ada)
    assert list_asked(scene) == "read offline_access"
    scene.far.challenge_scope = ""
    assert "scope" not in find_asked(scene, scene.bob)


@pytest.mark.parametrize("lines", [('scopes = ["a"]',)])
def test_refresh_tokens_are_not_asked_for_beside_the_scopes_of_the_table(scene: Scene) -> None:
    scene.far.metadata = {"scopes_supported": ["offline_access"]}
    asked = find_asked(scene)
    assert asked["scope"] == "a" and "prompt" not in asked


def test_scopes_that_an_authorization_server_refuses_are_named_with_the_way_out(scene: Scene) -> None:
    scene.far.grants = "read write"
    scene.connect(scene.ada)
    browser = scene.ada.browser()
    answer = scene.visit(scene.leave(browser).location)
    del answer["code"]
    told = come_back(browser, {**answer, "error": "invalid_scope"})
    assert told.status == 502 and "it refuses one of the scopes read write: end the connection" in told.text, told.text
    page = browser.get("/").text
    browser.post("/", {"csrf": find_csrf(page), "disconnect": "far"})
    assert list_asked(scene) == "read"
