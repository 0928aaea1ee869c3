"""A person approves commands on the first page: once, for a session, and for good."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.clients.raw_client import PATIENCE
from tests.server.auth.sign_in_server import Browser
from tests.servers.home_page_server import AppUser
from tests.transports.web.conftest import is_live, told

COMMAND = "rm -f lamp.tmp &&\n\techo '<b>kept</b>  two'\N{RIGHT-TO-LEFT OVERRIDE}"


def result(person: AppUser, command: str) -> str:
    return str(person.call("Bash", command=command)["content"][0]["text"])


def test_a_command_is_shown_as_it_is_and_allowed_for_good_until_that_is_ended(
    arrive: Callable[..., Any], ada: AppUser, bob: AppUser
) -> None:
    page = arrive("ada")
    is_live(page)
    card = page.locator(".question")
    with ThreadPoolExecutor(1) as thread:
        asked = thread.submit(result, ada, COMMAND)
        block = card.get_by_role("region", name="The command")
        assert block.text_content() == "rm -f lamp.tmp &&\n    echo '<b>kept</b>  two'\\u202e"
        assert "monospace" in block.evaluate("each => getComputedStyle(each).fontFamily")
        assert all(text in card.inner_text() for text in ("Bash(rm *)", "There is no sandbox", "your workspace"))
        card.get_by_role("button", name="Always allow this command").click()
        told(page, "You allowed this for good")
        assert "<b>kept</b>  two" in asked.result(PATIENCE)
    assert "<b>kept</b>  two" in result(ada, COMMAND)
    assert "takes a person's approval" in result(bob, COMMAND)  # another person, whose page is closed
    page.reload()
    row = page.locator("#part-approvals .row", has_text="rm -f lamp.tmp")
    id = row.locator("button").get_attribute("value")
    assert "account:ada approves Bash for always" in ada.log()
    strange = bob.browser()
    csrf = strange.get("/").text.partition('action="/"')[2].split('name="csrf" value="', 1)[1].partition('"')[0]
    assert strange.post("/", {"csrf": csrf, "forget": id or ""}).status == 404
    row.locator("summary").click()
    row.get_by_role("button", name="End").click()
    told(page, "You will be asked again.")
    with ThreadPoolExecutor(1) as thread:
        asked = thread.submit(result, ada, COMMAND)
        card.get_by_role("button", name="Deny").click()
        assert "declined" in asked.result(PATIENCE)


def test_an_approval_is_given_and_ended_by_its_person_alone(newcomer: AppUser, bob: AppUser) -> None:
    command = "rm -f account.tmp; echo gone"
    assert "can answer at" in result(newcomer, command)
    mine, other = newcomer.browser(), bob.browser()

    def press(browser: Browser, button: str, id: str) -> int:
        page = browser.get("/account" if button == "forget" else "/").text.rpartition("<main>")[2]
        csrf = page.split('name="csrf" value="', 1)[1].partition('"')[0]
        return browser.post("/account" if button == "forget" else "/", {"csrf": csrf, button: id}).status

    def find(path: str, button: str) -> str:
        return mine.get(path).text.split(f'name="{button}" value="', 1)[1].partition('"')[0]

    question = find("/", "always")
    assert [press(browser, "always", question) for browser in (other, mine, mine)] == [404, 200, 409]
    assert "gone" in result(newcomer, command)
    approval = find("/account", "forget")
    assert [press(browser, "forget", approval) for browser in (other, mine, mine)] == [404, 200, 404]
    assert "can answer at" in result(newcomer, command)
    assert press(mine, "decline", find("/", "decline")) == 200


def test_an_approval_for_the_session_ends_with_it_and_works_without_a_script(
    arrive: Callable[..., Any], newcomer: AppUser
) -> None:
    command = "rm -f session.tmp; echo removed"
    assert "The person can answer at" in result(newcomer, command)
    page = arrive(newcomer.name, java_script_enabled=False)
    page.get_by_role("button", name="Allow for this session").click()
    page.get_by_text("You allowed this for the session.").wait_for()
    for _ in range(2):
        assert "removed" in result(newcomer, command)
    newcomer.approve()  # opens another session
    assert "takes a person's approval" in result(newcomer, command)
    page.reload()
    page.get_by_role("button", name="Deny").click()


def test_a_long_command_scrolls_in_its_block(arrive: Callable[..., Any], newcomer: AppUser) -> None:
    assert "can answer at" in result(
        newcomer, "rm -f x\n" + "\n".join(f"echo line {n} {'x' * 200}" for n in range(100))
    )
    page = arrive(newcomer.name, "phone")
    block = page.get_by_role("region", name="The command")
    assert block.evaluate("each => each.scrollHeight > each.clientHeight && each.clientHeight < innerHeight / 2")
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    assert "101 lines" in page.locator(".question").inner_text()
    page.get_by_role("button", name="Always").evaluate("each => each.scrollIntoView()")
    page.get_by_role("button", name="Deny").click()
    told(page, "You refused this call.")
    assert page.locator("#told").evaluate("each => each.getBoundingClientRect().top >= 0")  # scrolled as it is


def test_each_block_that_hides_text_says_so_on_a_phone(arrive: Callable[..., Any], newcomer: AppUser) -> None:
    assert "can answer at" in result(newcomer, "rm -f " + "x" * 800)
    assert "can answer at" in str(newcomer.call("echo", text="y" * 3_000))
    page = arrive(newcomer.name, "phone")
    blocks = page.locator(".question pre")
    hides = "each => each.scrollHeight > each.clientHeight"
    says = "each => /characters: scroll/.test(each.nextElementSibling.textContent)"
    assert [(block.evaluate(hides), block.evaluate(says)) for block in blocks.all()] == [(True, True)] * 2
    for _ in range(2):
        page.get_by_role("button", name="Deny").first.click()
        told(page, "You refused this call.")
        page.reload()


def test_approvals_are_decided_by_keyboard_alone(arrive: Callable[..., Any], newcomer: AppUser) -> None:
    for name in ("one", "two", "three"):
        assert "can answer at" in result(newcomer, f"rm -f {name}.tmp; echo {name}")
    page = arrive(newcomer.name)
    is_live(page)
    steps = {"one": "Allow once", "two": "Deny", "three": "Always allow this command"}
    for n, (name, button) in enumerate(steps.items()):
        assert press_tab(page, "The command")[-1] == "The command"
        buttons = ["Deny", "Allow once", "Allow for this session", "Always allow this command"]
        assert press_tab(page, button) == buttons[: buttons.index(button) + 1]
        page.keyboard.press("Enter")
        told(page, ("You allowed this call.", "You refused this call.", "You allowed this for good")[n])
        page.locator(".question").nth(2 - n).wait_for(state="detached")
        assert ("declined" if button == "Deny" else name) in result(newcomer, f"rm -f {name}.tmp; echo {name}")
    row = page.locator("#part-approvals .row", has_text="three.tmp")
    row.wait_for()
    end = "End approval of rm -f three.tmp; echo three"
    assert press_tab(page, f"{end} …")[-1] == f"{end} …"
    page.keyboard.press("Space")
    assert press_tab(page, end) == [end]
    page.keyboard.press("Escape")
    assert page.evaluate("document.activeElement.ariaLabel") == f"{end} …" and row.locator("button").is_hidden()
    page.keyboard.press("Enter")
    assert press_tab(page, end) == [end]
    page.keyboard.press("Enter")
    row.wait_for(state="detached")
    with ThreadPoolExecutor(1) as thread:
        asked = thread.submit(result, newcomer, "rm -f three.tmp; echo three")
        page.get_by_role("button", name="Deny").click()
        told(page, "You refused this call.")
        assert "declined" in asked.result(PATIENCE)


@pytest.mark.brief("account")
@pytest.mark.parametrize("path", ["", "account", "logout"])
def test_a_person_signs_out_by_keyboard_alone_on_each_page(arrive: Callable[..., Any], ada: AppUser, path: str) -> None:
    page = arrive(ada.name)
    page.goto(f"{page.url}{path}")
    assert press_tab(page, "Sign out")[-1] == "Sign out"
    page.keyboard.press("Enter")
    page.get_by_role("heading", name="You are signed out").wait_for()
    assert press_tab(page, "Sign in")[-1] == "Sign in"
    page.keyboard.press("Enter")
    page.wait_for_url("**/login")


def press_tab(page: Any, until: str) -> list[str]:
    """Press the Tab key until the focus, which is always seen, is on the element with this name. Return the names."""
    names: list[str] = []
    while until not in names and len(names) < 60:
        page.keyboard.press("Tab")
        names.append(page.evaluate("document.activeElement.ariaLabel || document.activeElement.textContent.trim()"))
        assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") != "none", names
    return names
