"""The page for a refused metadata document, and its advice."""

import html
import re
from pathlib import Path

import pytest

from tests.server.auth.sign_in_server import sign_in_server

NAMED = "https://app.example/client.json"


def read(folder: Path, id: str, **options: str) -> str:
    """Return the text of the page for a client with this id."""
    with sign_in_server(folder, "password", **options) as made:
        got = made.browser().get(made.asking(id))
    assert got.status == 400 and "location" not in got.headers
    return " ".join(html.unescape(re.sub("<[^>]*>", " ", got.text)).split())


@pytest.mark.parametrize(
    ("registration", "ways", "missing"),
    [
        ("dynamic", ["registers itself", "--oauth-client-registration dcr", "--client-id"], []),
        ("closed", ["toolgate client add", "--registration dynamic", "--client-id"], ["dcr"]),
    ],
)
def test_a_page_says_how_to_go_on_without_a_document(
    tmp_path: Path, registration: str, ways: list[str], missing: list[str]
) -> None:
    told = read(tmp_path, NAMED, registration=registration)
    assert "This server does not accept client metadata documents" in told and NAMED in told
    assert [way for way in ways if way not in told] == [], told
    assert [way for way in missing if way in told] == [], told


def test_a_page_says_that_a_document_is_out_of_reach_and_not_why(tmp_path: Path) -> None:
    told = read(tmp_path, "https://localhost:1/client.json")  # nobody listens
    assert "The client's metadata document can't be reached from this server. https://localhost:1/client.json" in told
    assert "--registration dynamic" in told and "--oauth-client-registration dcr" in told
    assert "refused" not in told.lower() and "connect to" not in told
