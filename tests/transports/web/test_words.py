"""The words and buttons of the pages: a permission reads as what it is, once, and a no stands left of a yes."""

import subprocess
from collections.abc import Callable
from typing import Any

import pytest

from tests.clients.chromium import NOTIFICATIONS
from tests.server.auth.minted_tokens import Signed
from tests.server.cli.test_cli import run
from tests.servers.home_page_server import AppUser
from tests.transports.web.conftest import is_live

STAY = "Stay signed in until you revoke it"


@pytest.fixture(scope="module")
def una(signed: Signed) -> AppUser:
    return AppUser(signed, "una", "Harbor", scope="tools:shell tools:workflow offline_access")


def command(signed: Signed, *words: str) -> subprocess.CompletedProcess[str]:
    return run(signed.site.state.parent, *words, "--state", str(signed.site.state))


def test_offline_access_reads_as_what_it_is(signed: Signed, una: AppUser) -> None:
    browser = una.browser()
    for text in (browser.get("/").text, browser.get("/account").text, command(signed, "token", "list").stdout):
        assert STAY in text and "offline_access" not in text and "plugin" not in text


def test_the_account_page_says_once_what_each_permission_allows(signed: Signed, una: AppUser) -> None:
    una.approve()
    una.approve()
    page = una.browser().get("/account").text
    assert page.count('name="grant"') >= 3 and page.count("ask you questions, and load skills") == 1


def test_an_app_is_called_by_its_name_after_it_is_revoked(signed: Signed) -> None:
    ida = AppUser(signed, "ida", "Quarry")
    ida.call("Bash", command="true")
    browser = ida.browser()
    page = browser.get("/").text
    csrf = page.partition('action="/"')[2].split('name="csrf" value="', 1)[1].partition('"')[0]
    grant = page.split('name="revoke" value="', 1)[1].partition('"')[0]
    assert browser.post("/", {"csrf": csrf, "revoke": grant}).status == 200
    page = browser.get("/").text
    assert "Apps you have approved" in page and f'value="{grant}"' not in page
    assert "Quarry" in page.partition('id="part-calls"')[2] and ida.client not in page


@pytest.mark.brief("phone")
@pytest.mark.parametrize("size", ["phone", "desktop"])
def test_no_stands_left_of_yes_and_no_button_breaks_or_touches_another(
    size: str, arrive: Callable[..., Any], signed: Signed
) -> None:
    name = f"kim-{size}"
    kim = AppUser(signed, name, "Loom")
    kim.call("AskUserQuestion", questions_json='{"questions": [{"question": "Which?", "options": ["one", "two"]}]}')
    kim.call("echo", text="left")
    page = arrive(name, size=size)
    page.add_init_script(NOTIFICATIONS)
    page.reload()
    is_live(page)

    def box(selector: str, text: str) -> dict[str, float]:
        return dict(page.locator(f"{selector}:visible", has_text=text).first.bounding_box())

    for no, yes in (("Decline", "Send the answer"), ("Deny", "Allow once")):
        left, right = box("button", no), box("button", yes)
        assert left["x"] + left["width"] < right["x"] and left["y"] == right["y"], (no, yes)
        assert left["height"] == right["height"] < 50  # one line
    live, notify = box("#live", "live"), box("#notify", "Notify me")
    assert notify["x"] > live["x"] + live["width"] or notify["y"] >= live["y"] + live["height"]
    page.get_by_role("button", name="Notify me when something waits").click()
    note = box("#told", "Your browser will notify you")
    top = box(".top", "Running for you")
    assert note["y"] >= top["y"] + top["height"] + 8
