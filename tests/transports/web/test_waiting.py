"""What waits for a person reaches them in the background: the call waits, the tab counts, and a notification comes."""

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.clients.chromium import HIDE, NOTIFICATIONS
from tests.clients.raw_client import PATIENCE, eventually
from tests.servers.home_page_server import AppUser
from tests.transports.web.conftest import is_live, told


def test_a_call_waits_for_a_page_in_the_background_which_counts_and_notifies(
    arrive: Callable[..., Any], ada: AppUser
) -> None:
    page = arrive("ada")
    is_live(page)
    assert page.evaluate("Notification.permission") != "default" or page.locator("#notify").is_visible()
    page.add_init_script(NOTIFICATIONS)
    page.reload()
    is_live(page)
    page.get_by_role("button", name="Notify me when something waits").click()
    told(page, "Your browser will notify you")
    assert page.locator("#notify").is_hidden()
    page.evaluate(HIDE)
    icon, title = page.locator("link[rel=icon]").get_attribute("href"), page.title()
    assert title == "toolgate – Running for you"
    with ThreadPoolExecutor(2) as thread:
        began = time.monotonic()
        calls = [thread.submit(ada.call, "echo", text=text) for text in ("one", "two")]
        assert eventually(lambda: page.title() == f"(2) {title}")
        assert page.locator("link[rel=icon]").get_attribute("href") != icon
        assert page.evaluate("shown.map(each => each[1])") == ["echo", "echo"]
        time.sleep(max(0.0, began + 1 - time.monotonic()))  # a closed page would have ended the calls by now
        assert not any(call.done() for call in calls)
        for left in (1, 0):
            page.get_by_role("button", name="Allow once").first.click()
            assert eventually(lambda: page.locator(".question").count() == left)  # noqa: B023
        assert sorted(call.result(PATIENCE)["content"][0]["text"] for call in calls) == ["one", "two"]
    assert eventually(lambda: page.title() == title)
    assert eventually(lambda: page.locator("link[rel=icon]").get_attribute("href").endswith(icon))


@pytest.mark.parametrize("more", [2, pytest.param(7, marks=pytest.mark.soak)])  # Chromium opens six connections
def test_the_tabs_of_a_browser_share_one_stream_and_the_next_takes_over(
    arrive: Callable[..., Any], ada: AppUser, more: int
) -> None:
    first = arrive("ada")
    is_live(first)
    opened: list[str] = []
    first.context.on("request", lambda request: request.url.endswith("/events") and opened.append(request.url))
    first.reload()
    is_live(first)
    others = [first.context.new_page() for _ in range(more)]
    for page in others:
        page.goto(first.url)
        is_live(page)
    assert len(opened) == 1
    id = ada.run("echo first; read -t 600 < <(sleep 600)")
    for page in (first, *others):
        page.wait_for_function("id => document.getElementById(id)?.textContent === 'first\\n'", arg=f"output-{id}")
    late = first.context.new_page()
    late.goto(first.url)
    late.wait_for_function("id => document.getElementById(id)?.textContent === 'first\\n'", arg=f"output-{id}")
    first.close()
    assert eventually(lambda: (late.title(), len(opened))[1] == 2)
    ada.call("KillBgTask", task_id=id)
    for page in (*others, late):
        page.locator(f"#run-{id}").get_by_text("stopped").wait_for()


def test_a_call_is_listed_as_waiting_and_then_as_it_was_decided(arrive: Callable[..., Any], newcomer: AppUser) -> None:
    assert "can answer at" in str(newcomer.call("echo", text="left"))
    newcomer.call(
        "AskUserQuestion", questions_json='{"questions": [{"question": "Which?", "options": ["one", "two"]}]}'
    )
    page = arrive(newcomer.name)
    is_live(page)
    newest, second = (page.locator("#part-calls .call").nth(n) for n in range(2))
    second.get_by_text("waiting for you").wait_for()
    page.get_by_role("button", name="Allow once").click()
    second.get_by_text("you allowed it").wait_for()
    newest.get_by_text("waiting for you").wait_for()
    page.get_by_role("button", name="Decline").click()
    newest.get_by_text("you declined").wait_for()
    assert newcomer.call("echo", text="left")["content"][0]["text"] == "left"
    with ThreadPoolExecutor(1) as thread:
        asked = thread.submit(newcomer.call, "echo", text="held")
        newest.get_by_text("waiting for you").wait_for()
        page.get_by_role("button", name="Deny").click()
        asked.result(PATIENCE)
    newest.get_by_text("refused").wait_for()
    ends = ["refused", "done", "you declined", "you allowed it"]
    assert page.locator("#part-calls .tag").all_inner_texts()[:4] == ends
