"""What a person reads where a client's metadata document is not taken, and what they can do then."""

import html
import re
from pathlib import Path

import pytest

from tests.auth.house import house

NAMED = "https://app.example/client.json"


def read(folder: Path, id: str, **options: str) -> str:
    """The text of the page that a client with this id leads to."""
    with house(folder, "password", **options) as made:
        got = made.browser().get(made.asking(id))
    assert got.status == 400 and "location" not in got.headers
    return " ".join(html.unescape(re.sub("<[^>]*>", " ", got.text)).split())


@pytest.mark.parametrize(
    ("registration", "ways", "missing"),
    [
        ("dynamic", ["registers itself", "--oauth-client-registration dcr", "--client-id"], []),
        ("closed", ["toolgate client add", "--client-id"], ["dcr"]),
    ],
)
def test_a_page_says_how_to_go_on_without_a_document(
    tmp_path: Path, registration: str, ways: list[str], missing: list[str]
) -> None:
    told = read(tmp_path, NAMED, registration=registration)
    assert "This server takes no metadata documents of clients" in told and NAMED in told
    assert [way for way in ways if way not in told] == [], told
    assert [way for way in missing if way in told] == [], told
