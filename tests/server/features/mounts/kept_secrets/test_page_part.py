"""A person's secrets on the first page: what is wanted of them, set and removed, and never shown."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.clients.chromium import confirm, people
from tests.clients.raw_client import eventually
from tests.server.auth.minted_tokens import Signed, signed_site
from tests.server.auth.sign_in_server import PageAnswer
from tests.server.features.mounts.kept_secrets.test_secrets import find_files_with, secret, set_secret
from tests.server.features.mounts.mounted import FarSite, far_site, url_mount, write_config
from tests.servers import forked_command
from tests.servers.forked_command import COMMAND
from tests.servers.home_page_server import AppUser
from tests.transports.web.conftest import is_live, told
from tests.transports.web.screens import sign_in
from tests.transports.web.test_home import _csrf as find_csrf

VALUE = "sk-0123456789-of-ada"


class Scene:
    """A server with a mount that names two secrets, and two people with apps."""

    def __init__(self, signed: Signed) -> None:
        self.state = signed.site.state
        self.url = signed.site.url
        self.ada, self.bob = AppUser(signed, "ada", "Fern"), AppUser(signed, "bob", "Workbench")

    def connect(self, who: AppUser) -> PageAnswer:
        """Have a person keep their own KEY on the first page."""
        browser = who.browser()
        return browser.post(
            "/", {"csrf": find_csrf(browser.get("/").text), "keep-secret": "KEY", "secret-value": VALUE}
        )

    def read_headers(self, who: AppUser) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(who.call("far__headers")["content"][0]["text"])
        return found


@pytest.fixture
def far(tmp_path: Path) -> Iterator[FarSite]:
    with far_site(tmp_path, "modern") as opened:
        yield opened


@pytest.fixture
def scene(tmp_path: Path, far: FarSite) -> Iterator[Scene]:
    headers = 'headers = { X-Far-Key = "${secret:KEY}", X-Far-Other = "${secret:OTHER}" }'
    table = url_mount(far.url, "far", headers, 'scope = "tools:shell"')
    with signed_site(tmp_path / "server", *write_config(tmp_path, table)) as signed:
        yield Scene(signed)


def test_a_person_sets_replaces_and_removes_their_own(scene: Scene, chromium: Any) -> None:
    set_secret(scene.state, "OTHER", "of-everybody")
    with people(chromium) as arriving:
        page = arriving("desktop")
        page.goto(f"{scene.url}/login")
        sign_in(page, "ada")
        is_live(page)
        row, other = page.locator("#secret-KEY"), page.locator("#secret-OTHER")
        assert "not set" in row.inner_text() and "for far" in row.inner_text()
        assert "the one for everybody is used" in other.inner_text()
        for value, summary in ((VALUE, "Set your own"), ("another-of-ada", "Replace it")):
            row.get_by_text(summary).click()
            page.get_by_label("Value of KEY").fill(value)
            with page.expect_response(lambda answer: answer.request.method == "POST"):  # the second tells the same
                row.get_by_role("button", name="Keep it").click()
            told(page, "KEY is kept for you alone, and used from the next call on.")
            row.get_by_text("yours").wait_for()
            assert value not in page.content()
            assert scene.read_headers(scene.ada) == {"X-Far-Key": value, "X-Far-Other": "of-everybody"}
        confirm(page, "Remove your secret KEY")
        told(page, "Your secret was removed.")
        row.get_by_text("not set").wait_for()
    assert "SECRET_MISSING" in json.dumps(scene.ada.ask("tools/call", {"name": "far__headers"})[1].decode())


def test_a_row_that_changes_before_the_answer_to_its_form_is_closed_all_the_same(scene: Scene, chromium: Any) -> None:
    with people(chromium) as arriving:
        page = arriving("desktop")
        page.goto(f"{scene.url}/login")
        sign_in(page, "ada")
        beside = page.context.new_page()
        for each in (page, beside):
            each.goto(scene.url)
            is_live(each)

        def answer_late(route: Any) -> None:
            if route.request.method != "POST":
                route.fallback()
                return
            answer = route.fetch()
            beside.locator("#secret-KEY").get_by_text("yours").wait_for()  # the change has reached the pages
            route.fulfill(response=answer)

        page.route("**/*", answer_late)
        row = page.locator("#secret-KEY")
        row.get_by_text("Set your own").click()
        page.get_by_label("Value of KEY").fill(VALUE)
        row.get_by_role("button", name="Keep it").click()
        told(page, "KEY is kept for you alone, and used from the next call on.")
        row.get_by_text("yours").wait_for()
        page.get_by_label("Value of KEY").wait_for(state="hidden")
        assert page.get_by_label("Value of KEY").input_value() == ""


def test_without_a_script_and_for_others(scene: Scene) -> None:
    mine, theirs = scene.ada.browser(), scene.bob.browser()
    own, strange = find_csrf(mine.get("/").text), find_csrf(theirs.get("/").text)
    kept = mine.post("/", {"csrf": own, "keep-secret": "KEY", "secret-value": VALUE})
    assert (kept.status, "KEY is kept for you alone" in kept.text, VALUE in kept.text) == (200, True, False)
    assert "not set" in theirs.get("/").text
    refusals = {
        ("NONE", VALUE): (404, "No mounted server uses a secret of this name."),
        ("", VALUE): (404, "No mounted server uses a secret of this name."),
        ("KEY", ""): (400, "The value of KEY is empty."),
        ("KEY", "a\0b"): (400, "character"),
        ("KEY", "x" * 65_537): (400, "at most 65536 are kept."),
    }
    for (name, value), (status, text) in refusals.items():
        refused = theirs.post("/", {"csrf": strange, "keep-secret": name, "secret-value": value})
        assert (refused.status, text in refused.text) == (status, True), (name, refused.text)
    assert theirs.post("/", {"csrf": own, "keep-secret": "KEY", "secret-value": VALUE}).status == 403
    assert theirs.post("/", {"csrf": strange, "remove-secret": "KEY"}).status == 404
    assert mine.post("/", {"csrf": own, "remove-secret": "KEY"}).status == 200
    assert find_files_with(scene.state, VALUE) == []


def test_they_go_with_the_account(scene: Scene) -> None:
    mine = scene.ada.browser()
    own = find_csrf(mine.get("/").text)
    assert mine.post("/", {"csrf": own, "keep-secret": "KEY", "secret-value": VALUE}).status == 200
    set_secret(scene.state, "KEY", "of-everybody")
    assert scene.ada.name in secret(scene.state, "list").stdout
    words = [COMMAND, "user", "remove", "ada", "--state", str(scene.state)]
    assert forked_command.run(words, "", cwd=scene.state, env={"PATH": "/usr/bin:/bin"}).returncode == 0
    assert eventually(lambda: secret(scene.state, "list", "--json").stdout.count('"name"') == 1)
