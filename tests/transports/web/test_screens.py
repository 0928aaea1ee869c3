"""Every page at both sizes, light and dark: none overflows, and axe finds nothing.

`make test` looks at half of them once, by turns on a phone in light colours and on a desktop in dark ones.
"""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.clients.chromium import TOO_WIDE, people
from tests.clients.raw_client import ROOT
from tests.needed_features import require
from tests.transports.web import screens
from tests.transports.web.screens import LOOKS

AXE = ROOT / "tests" / "interop" / "node_modules" / "axe-core" / "axe.min.js"
FINDINGS = """async () => (await axe.run(document, {resultTypes: ['violations']})).violations
  .map(each => [each.id, each.help, each.nodes.map(node => node.html.slice(0, 120))])"""
OPEN = "document.querySelectorAll('details:not(.confirm)').forEach(each => { each.open = true })"

# Of pages that look alike, the one with the most on it
BRIEF = ["sign-in", "consent", "first-connect", "running", "waiting", "account", "confirmation", "password", "endpoint"]


@pytest.fixture(scope="module")
def shop() -> Iterator[screens.Shop]:
    require("events")
    with screens.shop() as served:
        yield served


@pytest.fixture
def arrive(chromium: Any) -> Iterator[Callable[..., Any]]:
    with people(chromium) as arriving:
        yield arriving


@pytest.mark.brief(*(f"{name}-one-open" for name in BRIEF))
@pytest.mark.parametrize("is_open", [True, pytest.param(False, marks=pytest.mark.soak)], ids=["open", "closed"])
@pytest.mark.parametrize("turns", [(0,), pytest.param((1, 2, 3), marks=pytest.mark.soak)], ids=["one", "others"])
@pytest.mark.parametrize("name", screens.SCREENS)
def test_a_page_fits_every_screen_and_axe_finds_nothing(
    name: str, turns: tuple[int, ...], is_open: bool, arrive: Callable[..., Any], shop: screens.Shop
) -> None:
    first = [*screens.SCREENS].index(name) % 2 * 3  # phone and light, or desktop and dark
    page = arrive()
    screens.SCREENS[name](page, shop)
    page.evaluate(AXE.read_text())
    if is_open:
        page.evaluate(OPEN)
    for turn in turns:
        size, scheme = LOOKS[(first + turn) % len(LOOKS)]
        screens.look(page, size, scheme)
        assert page.evaluate(TOO_WIDE) <= 0, (size, scheme)
        assert page.evaluate(FINDINGS) == [], (size, scheme)


def test_there_is_a_picture_of_every_page() -> None:
    """They are made again by `make pictures` alone: their pixels differ from machine to machine."""
    wanted = {f"{name}-{size}-{scheme}.webp" for name in screens.SCREENS for size, scheme in screens.LOOKS}
    found = {path.name: path.stat().st_size for path in screens.FOLDER.glob("*.webp")}
    assert set(found) == wanted
    assert sum(found.values()) < 2 * 2**20
