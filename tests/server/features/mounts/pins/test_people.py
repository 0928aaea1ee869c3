"""What one person's secret lists: who is told of it, and what of it is kept."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.clients.raw_client import eventually
from tests.clients.raw_http_client import Site, site
from tests.server.auth.minted_tokens import Signed
from tests.server.features.mounts.kept_secrets.test_secrets import list_far, principal, set_secret
from tests.server.features.mounts.mounted import far_site, url_mount, write_config
from tests.server.features.mounts.test_people import People

HELD = "HELD: it is not approved as it is now"


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[tuple[Site, People]]:
    with far_site(tmp_path, "legacy") as far:
        table = url_mount(far.url, "far", 'headers = { X-Far-Tool = "${secret:TOOL}" }')
        with site(tmp_path / "server", "--auth", "oauth", *write_config(tmp_path, table)) as listening:
            people = People(Signed(listening))
            set_secret(listening.state, "TOOL", "tool-of-the-team")
            for who in ("ada", "bob"):
                people.wait_listed(who)
            yield listening, people


def call(people: People, who: str, tool: str) -> str:
    return json.dumps(people.request(who, "tools/call", {"name": tool, "arguments": {}})[1])


def test_what_one_person_lacks_is_explained_to_nobody_else(opened: tuple[Site, People]) -> None:
    listening, people = opened
    set_secret(listening.state, "TOOL", "first-of-ada", principal("ada"))
    assert eventually(lambda: "far__first-of-ada" in list_far(people, "ada"))
    set_secret(listening.state, "TOOL", "second-of-ada", principal("ada"))
    assert eventually(lambda: "far__first-of-ada" not in list_far(people, "ada"))
    assert eventually(lambda: HELD in call(people, "ada", "far__second-of-ada")), listening.log()
    assert "unknown tool" in call(people, "bob", "far__second-of-ada")
