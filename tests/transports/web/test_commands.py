"""The background commands on the first page: all that run, counted and folded, and how many that ended are left out."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.clients.chromium import confirm, people
from tests.clients.raw_client import eventually
from tests.server.auth.minted_tokens import signed_site
from tests.server.auth.sign_in_server import PASSWORD
from tests.servers.home_page_server import AppUser
from tests.transports.web.conftest import is_live, told
from toolgate.server.calls.dashboard import MAX_ENDED, MAX_FOLLOWED
from toolgate.server.calls.recent_calls import MAX_CALLS

MANY = MAX_FOLLOWED + 6


@pytest.fixture
def ada_with_many(tmp_path: Path) -> Iterator[AppUser]:
    """Yield a person with many running commands, and more ended ones than the page shows."""
    limits = (
        "--limit",
        "background=40",
        "--limit",
        "commands=40",
        "--limit",
        "calls=0",
        "--limit",
        "calls:tools:shell=0",
    )
    with signed_site(tmp_path, *limits) as signed:
        ada = AppUser(signed, "ada", "App")
        for _ in range(MAX_ENDED + 2):
            ada.run("true")
        for _ in range(MAX_CALLS - MAX_ENDED - MANY):
            ada.call("PlanMode", action="status")
        for n in range(MANY):
            ada.run(f"echo number {n}; exec sleep 900")
        yield ada


@pytest.fixture
def arrive(chromium: Any) -> Iterator[Callable[..., Any]]:
    with people(chromium) as arriving:

        def come(ada: AppUser, size: str = "phone", **how: Any) -> Any:
            page = arriving(size, **how)
            page.goto(f"{ada.url}/login")
            page.get_by_label("Name").fill(ada.name)
            page.get_by_label("Password").fill(PASSWORD)
            page.get_by_role("button", name="Sign in").click()
            page.locator("#part-runs").wait_for()
            return page

        yield come


def heading(page: Any) -> str:
    return str(page.locator("#about-runs").inner_text())


def test_all_that_run_are_listed_counted_folded_and_stopped(ada_with_many: AppUser, arrive: Callable[..., Any]) -> None:
    page = arrive(ada_with_many)
    is_live(page)
    assert heading(page) == f"Background commands ({MANY})"
    rows = page.locator("#part-runs .row", has_text="running")
    assert rows.count() == MANY
    assert page.locator("#part-runs details[id^=fold-][open]").count() == 3
    assert page.evaluate("document.documentElement.scrollHeight") < 8_000
    page.get_by_text("… and 2 more that have ended").wait_for()
    page.get_by_text(f"Only the last {MAX_CALLS} calls are listed here.").wait_for()
    id = (rows.last.get_attribute("id") or "").removeprefix("run-")
    rows.last.get_by_text("Output").click()
    page.wait_for_function("id => document.getElementById(id).textContent === 'number 0\\n'", arg=f"output-{id}")
    newer = ada_with_many.run("exec sleep 900")
    page.locator(f"#fold-{newer}[open]").wait_for()
    assert eventually(lambda: page.locator("#part-runs details[id^=fold-][open]").count() == 4)  # and the chosen one
    assert page.locator(f"#fold-{id}").get_attribute("open") is not None
    confirm(page, f"Stop command {id}")
    told(page, f"Command {id} was stopped.")
    page.locator(f"#run-{id}", has_text="stopped").wait_for()
    assert eventually(lambda: heading(page) == f"Background commands ({MANY})")
    _stop_the_oldest_without_a_script(arrive(ada_with_many, java_script_enabled=False))


def _stop_the_oldest_without_a_script(page: Any) -> None:
    rows = page.locator("#part-runs .row", has_text="running")
    assert rows.count() == MANY
    id = (rows.last.get_attribute("id") or "").removeprefix("run-")
    assert page.locator(f"#output-{id}").text_content() == "number 1\n"
    confirm(page, f"Stop command {id}")
    page.get_by_text(f"Command {id} was stopped.").wait_for()
    assert heading(page) == f"Background commands ({MANY - 1})"
