"""A person signs in and decides, in a real Chromium."""

import contextlib
import io
import urllib.parse
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from playwright.sync_api import expect

from tests.clients.chromium import CONTRAST, SIZES, TOO_WIDE, UNNAMED, confirm, people
from tests.clients.raw_client import PATIENCE, eventually
from tests.clients.raw_http_client import Site
from tests.server.auth.authorization_in_process import VERIFIER, query
from tests.server.auth.sign_in_server import DOCUMENT, LONG_URI, PASSWORD, SignInServer, sign_in_server, waiting
from tests.servers.http_in_process import HELLO

ARMED = "() => getComputedStyle(document.querySelector('[value=approve]')).pointerEvents === 'none'"


@pytest.fixture
def person(chromium: Any, server: SignInServer) -> Iterator[Callable[..., Any]]:
    with people(chromium) as arrive:
        yield arrive


def ask(made: SignInServer, page: Any, *client: str, **more: str) -> None:
    page.goto(made.url + made.asking(*client, **more))


def sign_in(page: Any, password: str = PASSWORD) -> None:
    page.get_by_label("Name").fill("ada")
    page.get_by_label("Password").fill(password)
    page.get_by_role("button", name="Sign in").click()


def decide(page: Any, decision: str = "Approve") -> None:
    page.get_by_role("button", name=decision).click()


def connected(page: Any) -> None:
    page.get_by_role("heading", name="connected").wait_for()


def shows(page: Any, title: str) -> None:
    """Wait for the page with this title."""
    page.get_by_role("heading", level=1, name=title, exact=True).wait_for()


def is_asked(page: Any) -> None:
    shows(page, "Allow “Fernhill” to use this server?")
    page.get_by_role("button", name="Approve").wait_for()


@pytest.mark.brief("phone")
@pytest.mark.parametrize("size", SIZES)
def test_a_person_signs_in_approves_and_is_sent_back(size: str, person: Any, server: SignInServer) -> None:
    page = person(size)
    ask(server, page)
    shows(page, "Sign in")
    sign_in(page)
    is_asked(page)
    decide(page)
    connected(page)
    [answer] = server.caught
    assert (answer["state"], answer["iss"], "code" in answer) == ("s-1", server.url, True)
    assert "referer" not in answer  # SEC-06
    assert server.redeem(answer)["status"] == 200


@pytest.mark.brief("phone")
@pytest.mark.parametrize("size", ["phone", "desktop"])
def test_both_answers_and_the_riskiest_permission_are_in_sight_at_once(
    size: str, person: Any, server: SignInServer
) -> None:
    page = person(size)
    ask(server, page, "local")
    sign_in(page)
    for shown in (page.locator("[value=deny]"), page.locator("[value=approve]")):
        shown.wait_for()
        box = shown.bounding_box()
        assert box is not None and box["y"] >= 0 and box["y"] + box["height"] <= SIZES[size][1]
    assert page.get_by_role("checkbox").first.get_attribute("value") == "tools:shell"
    decide(page, "Deny")
    connected(page)


@pytest.mark.soak  # test_enter_on_a_box_approves_nothing denies, too
def test_a_person_who_denies_is_sent_back_with_that(person: Any, server: SignInServer) -> None:
    page = person()
    ask(server, page)
    sign_in(page)
    decide(page, "Deny")
    connected(page)
    [answer] = server.caught
    assert (answer["error"], answer["iss"], answer["state"]) == ("access_denied", server.url, "s-1")
    assert server.granted() == []


@pytest.mark.soak  # test_routes.py tries it without a browser
def test_a_wrong_password_is_reported_and_can_be_corrected(person: Any, server: SignInServer) -> None:
    page = person()
    ask(server, page)
    sign_in(page, "not the password")
    assert page.get_by_role("alert").inner_text() == "Wrong name or password."
    assert page.get_by_label("Name").input_value() == "ada"
    assert page.get_by_label("Password").input_value() == ""
    assert page.evaluate("document.activeElement.id") == "password"
    page.keyboard.type(PASSWORD)
    page.keyboard.press("Enter")
    decide(page)
    connected(page)


def test_az_09_two_tabs_opened_before_signing_in_both_work(person: Any, server: SignInServer) -> None:
    first = person()
    second = first.context.new_page()
    ask(server, first, state="first")
    ask(server, second, state="second")
    sign_in(first)
    is_asked(first)
    sign_in(second)  # its page is older than the session there is by now
    decide(first)  # and this one is of the session before that
    connected(first)
    decide(second)
    connected(second)
    assert [answer["state"] for answer in server.caught] == ["first", "second"]
    assert all("code" in answer for answer in server.caught)


@pytest.mark.soak  # the back button leads to a second answer, too
def test_az_09_the_same_question_in_two_tabs_is_answered_once(person: Any, server: SignInServer) -> None:
    first = person()
    ask(server, first)
    sign_in(first)
    is_asked(first)
    second = first.context.new_page()
    second.goto(first.url)
    decide(first)
    connected(first)
    second.get_by_role("checkbox").last.uncheck()
    decide(second)
    shows(second, "This request was already answered")
    assert len(server.granted()) == 1


def test_the_back_button_leads_to_no_second_answer(person: Any, server: SignInServer) -> None:
    page = person()
    ask(server, page)
    sign_in(page)
    decide(page)
    connected(page)
    page.go_back()
    shows(page, "This request was already answered")
    page.get_by_text("No further access was granted").wait_for()
    assert len(server.granted()) == 1


def test_the_back_button_after_signing_in_leads_on_to_the_question(person: Any, server: SignInServer) -> None:
    page = person()
    ask(server, page)
    sign_in(page)
    is_asked(page)
    page.go_back()
    is_asked(page)
    decide(page)
    connected(page)


@pytest.mark.soak  # oauth_server/test_codes.py tries it without a browser
def test_a_question_that_expired_while_it_was_shown_says_so(person: Any, server: SignInServer) -> None:
    page = person()
    ask(server, page)
    sign_in(page)
    is_asked(page)
    server.expire()
    decide(page)
    shows(page, "This request has expired")
    page.get_by_text("connect again").wait_for()
    assert server.caught == []


@pytest.mark.soak  # test_all_of_it_works_by_keyboard unticks one
def test_a_scope_that_was_unticked_is_not_granted(person: Any, server: SignInServer) -> None:
    page = person()
    ask(server, page)
    sign_in(page)
    shell = page.get_by_role("checkbox", name="Run any command in a shell")
    assert shell.is_checked()
    shell.uncheck()
    decide(page)
    connected(page)
    assert server.redeem(server.caught[0])["scope"] == "tools:read tools:web tools:workflow tools:plugins"


@pytest.mark.soak  # test_routes.py tries it without a browser
def test_nothing_ticked_is_asked_again(person: Any, server: SignInServer) -> None:
    page = person()
    ask(server, page, scope="tools:shell")
    sign_in(page)
    page.get_by_role("checkbox").uncheck()
    decide(page)
    assert "Tick at least one box" in page.get_by_role("alert").inner_text()
    decide(page, "Deny")
    connected(page)


def test_enter_on_a_box_approves_nothing(person: Any, server: SignInServer) -> None:
    page = person()
    ask(server, page)
    sign_in(page)
    page.get_by_role("checkbox").first.press("Enter")
    connected(page)
    assert server.caught[0]["error"] == "access_denied"


def test_another_person_can_sign_in_instead(person: Any, server: SignInServer) -> None:
    server.add("bob")
    page = person()
    ask(server, page)
    sign_in(page)
    page.get_by_role("link", name="Not you?").click()
    page.get_by_label("Name").fill("bob")
    page.get_by_label("Password").fill(PASSWORD)
    page.get_by_role("button", name="Sign in").click()
    decide(page)
    connected(page)
    assert [who for _, who, _ in server.granted()] == ["bob"]


def test_a_person_sees_and_takes_back_what_was_granted_and_signs_out(person: Any, server: SignInServer) -> None:
    page = person("phone")
    for client in ("local", DOCUMENT):
        ask(server, page, client)
        if client == "local":
            sign_in(page)
            page.get_by_text("its name can’t be verified").wait_for()
        decide(page)
        connected(page)
        assert server.redeem(server.caught[-1], client)["status"] == 200
    page.goto(server.url + "/account")
    assert page.locator("h3.named").all_inner_texts() == ["Fernhill", "Workbench"]
    confirm(page, "Revoke access of Fernhill")
    assert "Access was revoked" in page.get_by_role("status").inner_text()
    assert page.locator("h3.named").all_inner_texts() == ["Workbench"]
    page.get_by_role("button", name="Sign out").click()
    shows(page, "You are signed out")
    page.goto(server.url + "/account")
    shows(page, "Sign in")


def test_a_client_that_opened_a_window_hears_from_it_at_the_end(person: Any, server: SignInServer) -> None:
    """Browser clients wait for a message of their own page in the window they opened."""
    page = person()
    page.goto(server.app.removesuffix("/back"))
    with page.expect_popup() as opened:
        page.evaluate("address => void window.open(address, '', 'width=500,height=700')", server.url + server.asking())
    window = opened.value
    sign_in(window)
    decide(window)
    connected(window)
    assert window.evaluate("window.opener !== null")
    assert window.evaluate("window.opener.location.origin") == server.app.removesuffix("/back")


def slow_down(page: Any) -> None:
    """Make the page wait ten seconds instead of one: a busy machine may click late."""
    session = page.context.new_cdp_session(page)
    session.send("Animation.enable")
    session.send("Animation.setPlaybackRate", {"playbackRate": 0.1})


def test_sec_10_the_second_click_of_a_double_click_on_another_page_approves_nothing(
    person: Any, server: SignInServer
) -> None:
    """Another page disappears under the first click, and ours has its button under the second."""
    page = person()
    page.goto(server.url + "/login")
    sign_in(page)
    page.wait_for_url(server.url + "/")
    asking = server.url + server.asking(scope="tools:shell")
    page.goto(asking)
    box = page.get_by_role("button", name="Approve").bounding_box()
    trap = f"<!doctype html><body style='height:3000px'><script>onmousedown = () => location = '{asking}'</script>"
    page.route("**/trap", lambda route: route.fulfill(content_type="text/html", body=trap))
    slow_down(page)
    for _ in range(20):
        page.goto(server.app.removesuffix("back") + "trap")
        page.mouse.move(box["x"] + 40, box["y"] + 20)
        page.mouse.click(box["x"] + 40, box["y"] + 20)
        is_asked(page)
        if page.evaluate(ARMED):  # else this machine took too long for a double click
            break
    else:
        pytest.fail("the page never was armed as it came")
    page.mouse.click(box["x"] + 40, box["y"] + 20)
    assert eventually(lambda: not page.evaluate(ARMED))
    assert page.url.startswith(server.url)
    assert server.granted() == []
    page.mouse.click(box["x"] + 40, box["y"] + 20)
    connected(page)
    assert len(server.granted()) == 1


def test_sec_10_a_page_that_waited_behind_a_window_is_not_clicked_through_it(person: Any, server: SignInServer) -> None:
    page = person()
    ask(server, page, scope="tools:shell")
    sign_in(page)
    is_asked(page)
    page.mouse.move(-5, -5)
    assert eventually(lambda: not page.evaluate(ARMED))
    slow_down(page)
    box = page.get_by_role("button", name="Approve").bounding_box()
    page.mouse.click(box["x"] + 40, box["y"] + 20)  # the pointer was not over the page before
    assert page.evaluate(ARMED)
    assert eventually(lambda: not page.evaluate(ARMED))
    assert server.granted() == []
    page.mouse.click(box["x"] + 40, box["y"] + 20)
    connected(page)


def test_sec_10_there_is_nothing_to_click_before_the_page_can_arm_it(person: Any, server: SignInServer) -> None:
    page, held = person(), list[Any]()
    page.goto(server.url + "/login")
    sign_in(page)
    page.wait_for_url(server.url + "/")
    page.route("**/*.css*", lambda route: held.append(route))
    page.goto(server.url + server.asking(scope="tools:shell"), wait_until="commit")
    approve = page.locator("[value=approve]")
    approve.wait_for(state="attached")
    assert approve.bounding_box() is None
    assert page.locator("[value=deny]").bounding_box() is not None
    for sheet in held:
        sheet.continue_()
    decide(page)
    connected(page)


@pytest.mark.brief("/login")  # test_routes.py has the header of all
@pytest.mark.parametrize("path", ["/login", "/account", "/authorize?client_id=nobody"])
def test_sec_10_no_page_can_be_framed(path: str, chromium: Any, server: SignInServer) -> None:
    context = chromium.new_context()
    page = context.new_page()
    page.goto(server.app.removesuffix("/back"))
    frame = "address => { const f = document.createElement('iframe'); f.src = address; document.body.append(f) }"
    with page.expect_console_message(lambda message: "frame-ancestors" in message.text, timeout=PATIENCE * 1_000):
        page.evaluate(frame, server.url + path)
    context.close()


@pytest.mark.brief("phone-light")  # tests/transports/web/test_home.py has the dark
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("size", SIZES)
def test_every_page_is_accessible(size: str, scheme: str, person: Any, server: SignInServer, tmp_path: Path) -> None:
    page = person(size, color_scheme=scheme)
    looked = 0

    def look(title: str) -> None:
        nonlocal looked
        looked += 1
        shows(page, title)
        where = f"{title}, {size}, {scheme}"
        assert page.evaluate(CONTRAST) == [], where
        assert page.evaluate(UNNAMED) == [], where
        assert page.evaluate(TOO_WIDE) <= 0, where
        assert page.get_by_role("main").count() == 1, where
        if size != "narrow":  # that is 400 % of 1280 already (WCAG 1.4.10)
            page.evaluate("document.documentElement.style.fontSize = '200%'")  # WCAG 1.4.4
            assert page.evaluate(TOO_WIDE) <= 0, where
            page.evaluate("document.documentElement.style.fontSize = ''")

    ask(server, page, "local")
    look("Sign in")
    sign_in(page, "not the password")
    page.get_by_role("alert").wait_for()
    look("Sign in")
    sign_in(page)
    look("Allow “Workbench” to use this server?")
    picture = Image.open(io.BytesIO(page.screenshot(path=tmp_path / f"{size}-{scheme}.png", full_page=True)))
    shades = picture.convert("L").histogram()
    dark, light = sum(shades[:64]), sum(shades[192:])  # as many as a page of text has on its ground
    assert (dark > 5 * light) == (scheme == "dark") and (light > 5 * dark) == (scheme == "light")
    decide(page)
    connected(page)
    assert server.redeem(server.caught[0], "local")["status"] == 200
    ask(server, page, "self", LONG_URI)
    look("Allow “Definitely Claude” to use this server?")
    titles = {
        "/account": "Your account",
        "/logout": "Sign out",
        "/consent?question=gone": "This request has expired",
        "/authorize?client_id=nobody": "The app could not be connected",
        f"/authorize?client_id=https://localhost:1/{'a-very-long-path' * 20}": "The app could not be connected",
    }
    for path, title in titles.items():
        page.goto(server.url + path)
        look(title)
    assert looked == 9


def test_all_of_it_works_by_keyboard(person: Any, server: SignInServer) -> None:
    page = person()
    ask(server, page, scope="tools:read tools:shell")
    page.wait_for_function("document.activeElement.id === 'username'")
    page.keyboard.type("ada")
    page.keyboard.press("Tab")
    page.keyboard.type(PASSWORD)
    page.keyboard.press("Enter")
    page.get_by_role("heading", name="Allow").wait_for()
    seen = []
    for _ in range(9):
        page.keyboard.press("Tab")
        seen.append(page.evaluate("document.activeElement.value || document.activeElement.textContent"))
        assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") != "none"
        if seen[-1] == "tools:shell":
            page.keyboard.press("Space")
    links = ["toolgate", "First page", "Account", "Not you?"]
    assert seen == [*links, "tools:shell", "tools:read", "your account page", "deny", "approve"]
    page.keyboard.press("Enter")
    connected(page)
    assert server.redeem(server.caught[0])["scope"] == "tools:read"


@pytest.mark.soak  # a server that was just started has the same page
def test_the_first_account_is_made_on_a_page(chromium: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with sign_in_server(tmp_path) as made:
        context = chromium.new_context()
        page = context.new_page()
        page.goto(made.url + made.asking())
        page.get_by_label("Pairing code").fill(caplog.messages[-1].split("pairing code ")[1].split()[0])
        page.get_by_label("Your name").fill("ada")
        page.get_by_label("A new password").fill(PASSWORD)
        page.get_by_role("button", name="Create the account").click()
        decide(page)
        connected(page)
        assert "code" in made.caught[0]
        context.close()


def test_the_link_in_the_log_fills_in_the_pairing_code_and_leaves_the_address(
    chromium: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with sign_in_server(tmp_path) as made, contextlib.closing(chromium.new_context()) as context:
        page = context.new_page()
        asked: list[str] = []
        page.on("request", lambda request: asked.append(request.url))
        page.goto(f"{made.url}/login")
        link = caplog.messages[-1].split("open ")[1].split()[0]
        assert link.startswith(f"{made.url}/login#code=")
        page.goto(link)  # only the fragment of the page changes
        expect(page.get_by_label("Your name")).to_be_focused()
        page.goto("about:blank")
        page.goto(link)
        expect(page.get_by_label("Your name")).to_be_focused()
        assert page.get_by_label("Pairing code").input_value() == link.partition("=")[2]
        assert page.url == f"{made.url}/login"
        assert not any(link.partition("=")[2] in url.partition("#")[0] for url in asked)
        page.get_by_label("Your name").fill("ada lovelace")
        page.get_by_label("A new password").fill(PASSWORD)
        page.get_by_role("button", name="Create the account").click()
        assert "letters, digits" in page.get_by_role("alert").inner_text()
        expect(page.get_by_label("Your name")).to_be_focused()
        assert page.get_by_label("Pairing code").input_value() == link.partition("=")[2]
        page.get_by_label("Your name").fill("ada")
        page.get_by_label("A new password").fill(PASSWORD)
        page.get_by_role("button", name="Create the account").click()
        page.wait_for_url(f"{made.url}/")


def test_a_server_that_was_just_started_is_paired_connected_and_used(
    chromium: Any, listen: Callable[..., Site]
) -> None:
    """From the first line of the log to the first answer."""
    site = listen("--auth", "oauth")
    caught: list[dict[str, str]] = []
    with waiting(caught) as back, contextlib.closing(chromium.new_context()) as context:
        body = {"redirect_uris": [back], "token_endpoint_auth_method": "none", "client_name": "Workbench"}
        response, _, client = site.ask("POST", "/register", body)
        assert response.status == 201
        page = context.new_page()
        page.goto(f"{site.url}/authorize?{query(client['client_id'], redirect_uri=back, resource=site.url + '/mcp')}")
        assert eventually(lambda: "pairing code" in site.log())
        page.get_by_label("Pairing code").fill(site.log().rpartition("pairing code ")[2].split()[0])
        page.get_by_label("Your name").fill("ada")
        page.get_by_label("A new password").fill(PASSWORD)
        page.get_by_role("button", name="Create the account").click()
        decide(page)
        connected(page)
    form = {
        "grant_type": "authorization_code",
        "client_id": client["client_id"],
        "code": caught[0]["code"],
        "redirect_uri": back,
        "code_verifier": VERIFIER,
    }
    kind = "application/x-www-form-urlencoded"
    response, _, tokens = site.ask("POST", "/token", urllib.parse.urlencode(form).encode(), content_type=kind)
    assert response.status == 200, tokens
    assert site.ask("POST", "/mcp", HELLO)[0].status == 401
    response, _, answer = site.ask("POST", "/mcp", HELLO, authorization=f"Bearer {tokens['access_token']}")
    assert (response.status, answer["result"]["serverInfo"]["name"]) == (200, "toolgate")
    for secret in (PASSWORD, caught[0]["code"], tokens["access_token"], tokens["refresh_token"]):
        assert secret not in site.log()
