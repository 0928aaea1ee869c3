"""Fixtures: one server with sign-in for the pages of this room, its users, and their browsers."""

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.clients.chromium import people
from tests.server.auth.minted_tokens import Signed, signed_site
from tests.server.auth.sign_in_server import PASSWORD
from tests.servers.home_page_server import AppUser

APP = "Fern<b>hill</b>"
NUMBERS = itertools.count(1)


@pytest.fixture(scope="package")
def signed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Signed]:
    with signed_site(tmp_path_factory.mktemp("home"), "--approve", "echo,Bash(rm *)") as held:
        yield held


@pytest.fixture(scope="package")
def ada(signed: Signed) -> AppUser:
    return AppUser(signed, "ada", APP)


@pytest.fixture(scope="package")
def bob(signed: Signed) -> AppUser:
    return AppUser(signed, "bob", "Workbench")


@pytest.fixture
def newcomer(signed: Signed) -> AppUser:
    """A person whose page nobody has opened: their calls wait for no answer there. The server may see later that the
    page of an earlier test was closed, and a call waits for that person as long as a call may take."""
    return AppUser(signed, f"newcomer-{next(NUMBERS)}", "Loom")


@pytest.fixture
def arrive(chromium: Any, signed: Signed) -> Iterator[Callable[..., Any]]:
    """Yield a function that opens the first page, signed in for a person with a name."""
    with people(chromium) as arriving:

        def come(name: str = "", size: str = "desktop", **how: Any) -> Any:
            page = arriving(size, **how)
            page.goto(signed.site.url)
            if name:
                page.get_by_role("link", name="Sign in", exact=True).click()
                page.get_by_label("Name").fill(name)
                page.get_by_label("Password").fill(PASSWORD)
                page.get_by_role("button", name="Sign in").click()
                page.wait_for_url(signed.site.url + "/")
                page.locator("body[data-events]").wait_for()
            return page

        yield come


def is_live(page: Any) -> None:
    """Wait until the page follows its events. What it showed before came with the page itself."""
    page.locator("#live.on").wait_for()


def told(page: Any, text: str) -> None:
    page.locator("#told", has_text=text).wait_for()
