"""What a browser gets at an address that is no page: a sentence and the way to the first page."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.clients.raw_http_client import Site, site
from tests.server.auth.minted_tokens import Signed, signed_site
from tests.servers.home_page_server import AppUser

HTML = "text/html,application/xhtml+xml,*/*;q=0.8"


def _page(at: Site, path: str, accept: str = HTML) -> tuple[int, str, str, str]:
    """The status, the heading, what is in code, and where the button leads."""
    response, body, _ = at.ask("GET", path, accept=accept)
    assert response.getheader("content-type") == "text/html; charset=utf-8"
    assert "default-src 'none'" in (response.getheader("content-security-policy") or "")
    found = re.search(r"<h1>(.*)</h1>.*?(?:<code>(.*?)</code>.*?)?class=\"button\" href=\"(.*?)\"", body.decode(), re.S)
    assert found is not None, body
    return response.status, found[1], found[2] or "", found[3]


def test_an_unknown_path_shows_a_browser_the_way_to_the_first_page(shared: Site) -> None:
    assert _page(shared, "/nope") == (404, "There is no such page", "", "/")
    response, body, _ = shared.ask("GET", "/nope", accept="*/*")
    assert (response.status, body) == (404, b"Not Found")


def test_a_browser_gets_the_icon_where_a_page_names_none(shared: Site) -> None:
    icons = [shared.ask("GET", path, accept="image/avif,image/*,*/*;q=0.8") for path in ("/favicon.ico", "/icon.svg")]
    assert [(icon.status, icon.getheader("content-type"), body) for icon, body, _ in icons] == [
        (200, "image/svg+xml", icons[1][1])
    ] * 2


def test_a_pairing_code_leaves_the_address_of_every_page_that_its_link_leads_to(
    arrive: Callable[..., Any], ada: AppUser
) -> None:
    page = arrive()
    page.goto(f"{page.url}login#code=OLD-CODE")
    page.wait_for_url(re.compile("/login$"))
    page = arrive(ada.name)
    home = page.url
    page.goto("about:blank")
    page.goto(f"{home}login#code=OLD-CODE")  # leads a person who is signed in on, with the fragment
    page.wait_for_url(home)


@pytest.mark.parametrize("path", ["/mcp", "/sse"])
def test_a_browser_at_the_url_of_a_transport_learns_where_to_paste_it(shared: Site, path: str) -> None:
    assert _page(shared, path) == (406, "This address is for MCP clients", f"{shared.url}{path}", "/")


def test_a_browser_without_a_token_gets_the_same_page_with_the_challenge(tmp_path: Path) -> None:
    with signed_site(tmp_path) as signed:
        assert _page(signed.site, "/mcp")[:2] == (401, "This address is for MCP clients")
        challenges = [_challenge(signed, accept) for accept in (HTML, "text/event-stream, text/html", "*/*")]
        assert challenges[0] == challenges[1] == challenges[2] != ""


def _challenge(signed: Signed, accept: str) -> str:
    response, _, _ = signed.site.ask("GET", "/mcp", accept=accept)
    assert response.status == 401
    return response.getheader("www-authenticate") or ""


def test_behind_a_path_the_page_leads_to_the_first_page_there(tmp_path: Path) -> None:
    with site(tmp_path, "--auth", "none", "--public-url", "http://localhost:8080/tools") as at:
        assert _page(at, "/nope")[3] == "/tools/"
        assert _page(at, "/mcp")[2] == "http://localhost:8080/tools/mcp"
