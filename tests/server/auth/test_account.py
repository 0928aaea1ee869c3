"""The account page: the password, the signed-in browsers, and the steps before what can't be undone."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.clients.chromium import confirm, people
from tests.server.auth.sign_in_server import PASSWORD, Browser, SignInServer
from tests.server.state.rows.test_many_grants import add_grants
from toolgate.transports.web.sign_in_context import name_browser

NEW = "battery staple"


@pytest.fixture
def arrive(chromium: Any, server: SignInServer) -> Iterator[Callable[..., Any]]:
    """Yield a function that opens the account page of ada."""
    with people(chromium) as arriving:

        def come(**how: Any) -> Any:
            page = arriving(**how)
            page.goto(f"{server.url}/login")
            page.get_by_label("Name").fill("ada")
            page.get_by_label("Password").fill(PASSWORD)
            page.get_by_role("button", name="Sign in").click()
            page.wait_for_url(f"{server.url}/")
            page.goto(f"{server.url}/account")
            return page

        yield come


def change(browser: Browser, old: str, new: str, again: str = "") -> Any:
    csrf = browser.get("/account").field("csrf")
    return browser.post("/account", {"csrf": csrf, "password": old, "new-password": new, "again": again or new})


def test_a_password_is_changed_by_keyboard_alone_and_other_browsers_are_signed_out(
    arrive: Callable[..., Any], server: SignInServer
) -> None:
    other = server.browser(accept="text/html")
    other.sign_in()
    page = arrive(java_script_enabled=False)
    page.locator("summary", has_text="Change your password").focus()
    for key, text in (("Enter", ""), ("Tab", PASSWORD), ("Tab", NEW), ("Tab", NEW), ("Enter", "")):
        page.keyboard.press(key)
        page.keyboard.type(text)
    page.get_by_role("heading", name="Your password is changed").wait_for()
    assert other.get("/account").location == "/login"
    page.get_by_role("link", name="Go to your account").click()
    page.get_by_role("heading", name="Your account").wait_for()
    assert "/login?" not in other.sign_in().headers.get("location", "") and other.sign_in().status == 403
    assert other.sign_in(password=NEW).location == "/"


def test_a_password_is_not_changed_without_the_old_one_or_to_a_bad_one(server: SignInServer) -> None:
    browser = server.browser(accept="text/html")
    browser.sign_in()
    for old, new, again, status, told in (
        ("wrong one", NEW, "", 403, "The current password is wrong."),
        (PASSWORD, NEW, "battery stable", 400, "The two new passwords differ."),
        (PASSWORD, "short", "", 400, "A password must have at least 8 characters."),
        (PASSWORD, "iloveyou1", "", 400, "A password may not be a common one, a sequence or a repetition"),
        (PASSWORD, "ada-1815-ada", "", 400, "A password must differ from the name"),
    ):
        page = change(browser, old, new, again)
        assert (page.status, told in page.text) == (status, True), told
        assert new not in page.text
    forged = browser.post("/account", {"csrf": "0" * 64, "password": PASSWORD, "new-password": NEW, "again": NEW})
    assert forged.status == 403
    assert server.browser(accept="text/html").sign_in().location == "/"


def test_of_many_apps_the_newest_are_shown_and_the_others_counted(server: SignInServer) -> None:
    assert server.sign_in.accounts is not None
    ada = server.do(server.sign_in.accounts.find_account("ada"))
    assert ada is not None
    server.do(add_grants(server.store, 60, ada))
    browser = server.browser(accept="text/html")
    browser.sign_in()
    page = browser.get("/account").text
    assert (page.count('name="grant"'), "… and 10 more" in page) == (50, True)
    assert 'value="g-59"' in page and 'value="g-9"' not in page


def test_a_changed_password_is_logged_without_it(server: SignInServer, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "toolgate.auth")
    browser = server.browser(accept="text/html")
    browser.sign_in()
    assert change(browser, PASSWORD, NEW).status == 200
    assert "password changed: from 127.0.0.1 as ada" in caplog.text
    assert NEW not in caplog.text and PASSWORD not in caplog.text


def test_guesses_at_the_old_password_are_throttled_as_those_at_the_login(server: SignInServer) -> None:
    browser = server.browser(accept="text/html")
    browser.sign_in()
    statuses = [change(browser, f"guess {n} of many", NEW).status for n in range(8)]
    assert statuses[0] == 403 and statuses[-1] == 429
    assert "retry-after" in change(browser, PASSWORD, NEW).headers


def test_a_browser_is_listed_with_its_name_and_signed_out_after_a_second_step(
    arrive: Callable[..., Any], server: SignInServer
) -> None:
    hostile = "Mozilla/5.0 (X11; Linux x86_64) <script>alert(1)</script> Firefox/140.0"
    other, bob = server.browser(accept="text/html", user_agent=hostile), server.browser(accept="text/html")
    other.sign_in()
    server.add("bob")
    bob.sign_in(name="bob")
    page = arrive(java_script_enabled=False)
    text = page.locator("main").inner_text()
    assert "Firefox on Linux" in text and "this one" in text and "script" not in text
    id = page.locator("button[name=browser]").get_attribute("value")
    tried = bob.post("/account", {"csrf": bob.get("/account").field("csrf"), "browser": id})
    assert (tried.status, other.get("/account").status) == (404, 200)
    confirm(page, "Sign out Firefox on Linux")
    page.get_by_text("That browser is signed out.").wait_for()
    assert other.get("/account").location == "/login"
    assert "Firefox on Linux" not in page.locator("main").inner_text()


def test_a_stale_sign_out_says_that_the_person_is_still_signed_in(server: SignInServer) -> None:
    browser = server.browser(accept="text/html")
    browser.sign_in()
    page = browser.post("/logout", {"csrf": "0" * 64})
    assert page.status == 403 and "you are still signed in" in page.text
    assert browser.get("/account").status == 200
    assert "You are signed out" in browser.post("/logout", {"csrf": page.field("csrf")}).text


@pytest.mark.parametrize(
    ("user_agent", "name"),
    [
        ("Mozilla/5.0 (Windows NT 10.0; x64) Chrome/140.0 Safari/537.36 Edg/140", "Edge on Windows"),
        ("Mozilla/5.0 (iPhone; CPU iPhone OS 19_0 like Mac OS X) Safari/604.1", "Safari on iPhone"),
        ("Mozilla/5.0 (Linux; Android 16) Chrome/140.0 Mobile Safari/537.36", "Chrome on Android"),
        ("curl/8.0", ""),
    ],
)
def test_a_browser_is_named_in_a_few_words(user_agent: str, name: str) -> None:
    assert name_browser(user_agent) == name
