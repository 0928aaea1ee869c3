"""The pages of mounted servers at every size, light and dark: none overflows, nothing overlaps, axe finds nothing; and
all of it works by keyboard.

`make test` looks at the fullest of each page once, each at the next size and colours.
"""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.clients.chromium import CONTRAST, SIZES, TOO_WIDE, UNNAMED, people
from tests.clients.raw_client import PATIENCE
from tests.server.features.mounts.pages.mounted_shop import MountedShop, mounted_shop
from tests.transports.web.conftest import is_live, told
from tests.transports.web.screens import look, sign_in
from tests.transports.web.test_screens import AXE, FINDINGS, OPEN

SCREENS = {  # name → who sees what
    "first-page": ("ada", "/"),
    "first-page-of-an-administrator": ("eve", "/"),
    "tools": ("ada", "/mounts/tools?name=files"),
    "tools-of-the-last-page": ("ada", "/mounts/tools?name=files&page=2"),
    "tools-of-a-server-that-is-off": ("ada", "/mounts/tools?name=far"),
    "tools-of-none": ("ada", "/mounts/tools?name=search"),
    "connect": ("ada", "/mounts/connect?name=far"),
    "connect-to-none": ("ada", "/mounts/connect?name=nowhere"),
    "codes": ("ada", "/mounts/codes#HELD"),
    "people": ("eve", "/mounts/people"),
    "people-not-found": ("eve", "/mounts/people?who=nobody"),
}
FULLEST = ("first-page-of-an-administrator", "tools", "tools-of-a-server-that-is-off", "connect", "codes", "people")
LOOKS = [(size, scheme) for size in SIZES for scheme in ("light", "dark")]
MOST_TABS = 100  # from the top of a page to what is looked for
# Texts and controls beside each other whose boxes overlap
OVERLAPS = """() => [...document.querySelectorAll('.head, .option, .buttons, nav, dl > div')].flatMap(box => {
  const shown = [...box.children].filter(e => e.getClientRects().length);
  return shown.flatMap((e, i) => shown.slice(i + 1).filter(f => {
    const [a, b] = [e.getBoundingClientRect(), f.getBoundingClientRect()];
    const width = Math.min(a.right, b.right) - Math.max(a.left, b.left);
    const height = Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top);
    return width > 1 && height > 1;
  }).map(f => [e.outerHTML.slice(0, 80), f.outerHTML.slice(0, 80)]));
})"""


@pytest.fixture(scope="module")
def shop() -> Iterator[MountedShop]:
    with mounted_shop() as opened:
        yield opened


@pytest.fixture
def arrive(chromium: Any, shop: MountedShop) -> Iterator[Callable[[str, str], Any]]:
    """Yield a function that opens a page for a person who has signed in."""
    with people(chromium) as arriving:

        def come(name: str, path: str) -> Any:
            page = arriving()
            page.goto(f"{shop.url}/login")
            sign_in(page, name)
            page.wait_for_url(f"{shop.url}/")
            page.goto(shop.url + path)
            return page

        yield come


@pytest.mark.brief(*(f"{name}-one" for name in FULLEST))
@pytest.mark.parametrize("turns", [(0,), (1, 2, 3, 4, 5)], ids=["one", "others"])
@pytest.mark.parametrize("name", SCREENS)
def test_a_page_fits_every_screen_and_axe_finds_nothing(
    name: str, turns: tuple[int, ...], arrive: Callable[[str, str], Any]
) -> None:
    first = [*SCREENS].index(name)
    page = arrive(*SCREENS[name])
    page.evaluate(AXE.read_text())
    page.evaluate(OPEN)
    for turn in turns:
        size, scheme = LOOKS[(first + turn) % len(LOOKS)]
        look(page, size, scheme)
        assert page.evaluate(TOO_WIDE) <= 0, (size, scheme)
        assert page.evaluate(FINDINGS) == page.evaluate(CONTRAST) == page.evaluate(UNNAMED) == [], (size, scheme)
        assert page.evaluate(OVERLAPS) == [], (size, scheme)


def test_tools_are_switched_by_keyboard(arrive: Callable[[str, str], Any]) -> None:
    page = arrive("ada", "/")
    is_live(page)
    page.get_by_label("tools of files").focus()
    page.keyboard.press("Enter")
    page.get_by_label("list_directory").focus()
    page.keyboard.press("Space")
    page.keyboard.press("Enter")
    page.get_by_text("This is kept for you alone").wait_for()
    assert not page.get_by_label("list_directory").is_checked()
    page.get_by_label("list_directory").check()
    page.get_by_role("button", name="Save").press("Enter")
    page.get_by_text("This is kept for you alone").wait_for()
    assert page.get_by_label("list_directory").is_checked()


def test_a_server_is_switched_by_keyboard_and_other_tabs_follow(arrive: Callable[[str, str], Any]) -> None:
    page, other = arrive("bob", "/"), arrive("bob", "/")
    for each in (page, other):
        is_live(each)
    page.get_by_role("button", name="Switch off files for you").press("Enter")
    told(page, "files is off for you.")
    for each in (page, other):
        each.get_by_role("button", name="Switch on files for you").wait_for(timeout=PATIENCE * 1_000)
    other.get_by_role("button", name="Switch on files for you").press("Space")
    told(other, "files is on for you.")
    page.get_by_role("button", name="Switch off files for you").wait_for()


def tab_to(page: Any, control: Any) -> None:
    """Go to a control from where the page is, by the Tab key alone."""
    control.wait_for()
    for _ in range(MOST_TABS):
        page.keyboard.press("Tab")
        if control.evaluate("it => it === document.activeElement"):
            return
    pytest.fail("the Tab key does not lead there")


@pytest.mark.soak  # as an ended connection, whose fold, button and focus are of the same parts
def test_a_secret_is_set_and_removed_by_keyboard(arrive: Callable[[str, str], Any]) -> None:
    page = arrive("bob", "/")
    is_live(page)
    tab_to(page, page.locator("#fold-secret-SEARCH_KEY summary"))
    page.keyboard.press("Enter")
    tab_to(page, page.get_by_label("Value of SEARCH_KEY"))
    page.keyboard.type("sk-0123456789-of-bob")
    tab_to(page, page.locator("#secret-SEARCH_KEY").get_by_role("button", name="Keep it"))
    page.keyboard.press("Space")
    told(page, "SEARCH_KEY is kept for you alone")
    tab_to(page, page.locator("#remove-secret-SEARCH_KEY summary"))
    page.keyboard.press("Enter")
    tab_to(page, page.get_by_role("button", name="Remove your secret SEARCH_KEY"))
    page.keyboard.press("Enter")
    told(page, "Your secret was removed.")
    page.locator("#fold-secret-SEARCH_KEY summary", has_text="Set your own").wait_for()


def test_a_person_ends_a_connection_and_connects_again_by_keyboard(arrive: Callable[[str, str], Any]) -> None:
    page = arrive("eve", "/")
    is_live(page)
    tab_to(page, page.locator("#disconnect-far summary"))
    page.keyboard.press("Enter")
    tab_to(page, page.get_by_role("button", name="End your connection to far"))
    page.keyboard.press("Enter")
    told(page, "The connection was ended.")
    tab_to(page, page.get_by_role("link", name="Connect: far"))
    page.keyboard.press("Enter")
    tab_to(page, page.get_by_role("button", name="Go there and sign in"))
    page.keyboard.press("Enter")
    page.get_by_role("heading", name="Connected").wait_for()
    tab_to(page, page.get_by_role("main").get_by_role("link", name="the first page"))
    page.keyboard.press("Enter")
    page.locator("#connection-far", has_text="connected since").wait_for()


@pytest.mark.soak  # the same controls as those of a person, below an own page
def test_an_administrator_ends_a_connection_by_keyboard(arrive: Callable[[str, str], Any]) -> None:
    page = arrive("eve", "/mounts/people?who=bob")
    page.locator('summary[aria-label^="End the connection of bob"]').press("Enter")
    page.get_by_role("button", name="End the connection of bob to far").press("Enter")
    page.get_by_text("The connection was ended.").wait_for()
