"""A person answers questions on the first page: by pointer, by keyboard alone, and without a script."""

import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from tests.clients.raw_client import PATIENCE, eventually
from tests.servers.home_page_server import AppUser
from tests.transports.web.conftest import is_live, told

STORE = {"label": "SQLite", "description": "One file, <b>no</b> server"}
DATABASE = {"question": "Which database?", "header": "Database", "options": [STORE, "PostgreSQL"]}
DAYS = {"question": "Which days?", "options": ["Monday", "Tuesday"], "multiSelect": True}


def ask(person: AppUser, *questions: dict[str, Any]) -> str:
    """Return what the model reads."""
    return str(person.call("AskUserQuestion", questions_json=json.dumps(questions))["content"][0]["text"])


def answered(*selected: Any) -> list[tuple[str, Any]]:
    return list(zip((DATABASE["question"], DAYS["question"]), selected, strict=False))


def read(text: str) -> list[tuple[str, Any]]:
    return [(each["question"], each["selected"]) for each in json.loads(text)["answers"]]


def test_questions_are_cards_with_their_options_once(arrive: Callable[..., Any], ada: AppUser) -> None:
    page = arrive("ada")
    is_live(page)
    card = page.locator(".question")
    with ThreadPoolExecutor(1) as thread:
        asked = thread.submit(ask, ada, DATABASE, DAYS)
        card.get_by_role("radio", name="SQLite One file, <b>no</b> server").check()
        text = card.inner_text()
        assert [text.count(each) for each in ("Which database?", "SQLite", "One file", "Monday", "Other")] == [
            1,
            1,
            1,
            1,
            2,
        ]
        words = card.get_by_label("Your own answer")
        assert [words.nth(n).is_visible() for n in (0, 1)] == [False, False]
        days = card.get_by_role("group", name="Which days?")
        days.get_by_label("Tuesday").check()
        days.get_by_label("Other", exact=True).check()
        card.get_by_role("button", name="Send the answer").click()
        told(page, "You chose Other: write your own answer next to it.")
        days.get_by_label("Your own answer").fill("a Sunday\nin May")
        card.get_by_role("button", name="Send the answer").click()
        told(page, "Your answer was sent.")
        assert read(asked.result(PATIENCE)) == answered("SQLite", ["Tuesday", "a Sunday\nin May"])


def test_a_question_is_answered_by_keyboard_alone(arrive: Callable[..., Any], ada: AppUser) -> None:
    page = arrive("ada")
    is_live(page)
    with ThreadPoolExecutor(1) as thread:
        asked = thread.submit(ask, ada, DATABASE)
        page.locator(".question").wait_for()
        for _ in range(30):
            page.keyboard.press("Tab")
            if page.evaluate("document.activeElement.type") == "radio":
                break
        for key in ("Space", "ArrowDown", "ArrowDown", "Tab"):  # to the last option, and its field
            page.keyboard.press(key)
        page.keyboard.type("none at all")
        for button in ("Decline", "Send the answer"):
            page.keyboard.press("Tab")
            assert page.evaluate("document.activeElement.textContent") == button
        page.keyboard.press("Enter")
        assert read(asked.result(PATIENCE)) == answered("none at all")


def test_enter_in_a_text_field_sends_the_answer(arrive: Callable[..., Any], ada: AppUser) -> None:
    page = arrive("ada")
    is_live(page)
    with ThreadPoolExecutor(1) as thread:
        asked = thread.submit(ada.call, "ask_name")
        page.locator(".question").get_by_label("name").fill("Ada")
        page.keyboard.press("Enter")
        told(page, "Your answer was sent.")
        assert asked.result(PATIENCE)["content"][0]["text"] == "Ada"


def test_a_question_is_answered_without_a_script(arrive: Callable[..., Any], newcomer: AppUser) -> None:
    told_model = ask(newcomer, DATABASE)
    assert "The person can answer at" in told_model
    page = arrive(newcomer.name, java_script_enabled=False)
    assert page.title().startswith("(1) ")
    card = page.locator(".question")
    card.get_by_label("Other", exact=True).check()
    card.get_by_label("Your own answer").fill("MariaDB")
    card.get_by_role("button", name="Send the answer").click()
    page.get_by_text("Your answer was sent.").wait_for()
    assert read(ask(newcomer, DATABASE)) == answered("MariaDB")


def test_what_a_person_has_chosen_stays_while_the_page_is_updated(
    arrive: Callable[..., Any], newcomer: AppUser
) -> None:
    assert "can answer at" in ask(newcomer, DATABASE)
    page = arrive(newcomer.name)
    is_live(page)
    card = page.locator(".question")
    card.get_by_label("Other", exact=True).check()
    card.get_by_label("Your own answer").fill("half an ans")
    page.locator("h1").click()
    before = card.inner_html()
    with ThreadPoolExecutor(1) as thread:
        asked = thread.submit(ask, newcomer, DATABASE)  # the same question waits on: its expiry changes
        page.evaluate("document.activeElement.blur()")
        page.locator("#part-questions time").last.evaluate("each => each.dateTime = '2020-01-01T00:00:00Z'")
        assert eventually(lambda: card.inner_html() != before)
        assert card.get_by_label("Your own answer").input_value() == "half an ans"
        card.get_by_role("button", name="Decline").click()
        assert "declined" in asked.result(PATIENCE)
