"""What one person's secret lists: who is told of it, and what of it is kept."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.clients.raw_client import eventually
from tests.clients.raw_http_client import Site, site
from tests.server.auth.minted_tokens import Signed
from tests.server.features.mounts.kept_secrets.test_secrets import (
    find_files_with,
    list_far,
    principal,
    set_secret,
)
from tests.server.features.mounts.lists.test_personal_lists import count_rows
from tests.server.features.mounts.mounted import far_site, url_mount, write_config
from tests.server.features.mounts.test_people import People
from toolgate.server.cli import main

HELD = "HELD: it is not approved as it is now"
TOOL_OF_SECRET = 'headers = { X-Far-Tool = "${secret:TOOL}" }'


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[tuple[Site, People]]:
    with far_site(tmp_path, "legacy") as far:
        table = url_mount(far.url, "far", TOOL_OF_SECRET)
        with site(tmp_path / "server", "--auth", "oauth", *write_config(tmp_path, table)) as listening:
            people = People(Signed(listening))
            set_secret(listening.state, "TOOL", "key-tool-of-the-team")
            for who in ("ada", "bob"):
                people.wait_listed(who)
            yield listening, people


def call(people: People, who: str, tool: str) -> str:
    return json.dumps(people.request(who, "tools/call", {"name": tool, "arguments": {}})[1])


def is_known(people: People, tool: str) -> bool:
    """Return whether the tool is listed for Ada, or held."""
    return tool in list_far(people, "ada") or HELD in call(people, "ada", tool)


def test_what_one_person_lacks_is_explained_to_nobody_else(opened: tuple[Site, People]) -> None:
    listening, people = opened
    set_secret(listening.state, "TOOL", "key-first-of-ada", principal("ada"))
    assert eventually(lambda: "far__first-of-ada" in list_far(people, "ada"))
    set_secret(listening.state, "TOOL", "key-second-of-ada", principal("ada"))
    assert eventually(lambda: "far__first-of-ada" not in list_far(people, "ada"))
    assert eventually(lambda: HELD in call(people, "ada", "far__second-of-ada")), listening.log()
    assert "unknown tool" in call(people, "bob", "far__second-of-ada")


def test_no_pin_and_no_log_has_a_persons_secret(
    opened: tuple[Site, People], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    listening, people = opened
    secrets = ("first-of-ada", "second-of-ada")
    for value in secrets:
        set_secret(listening.state, "TOOL", f"key-{value}", principal("ada"))
        assert eventually(lambda value=value: is_known(people, f"far__{value}"))
    words = ("mount", "review", "far", "--config", str(tmp_path / "mounts.toml"), "--state", str(listening.state))

    def review(*more: str) -> str:
        assert main.run((*words, *more)) == 0
        return capsys.readouterr().out

    assert eventually(lambda: "tool second-of-ada " in review())
    assert 'description: "does second-of-ada by …"' in review()
    digest = json.loads(review("--json"))["items"][0]["digest"]
    review("--approve", digest)
    assert eventually(lambda: "far__second-of-ada" in list_far(people, "ada"))
    for value in secrets:
        kept = [
            path.name for path in find_files_with(listening.state, f"key-{value}") if path.name.startswith("state.db")
        ]
        assert kept == [] and f"key-{value}" not in listening.log()


@pytest.mark.parametrize("owner", ["", principal("ada")], ids=["team", "person"])
def test_a_start_pins_what_was_shown_without_the_secret(tmp_path: Path, owner: str) -> None:
    with far_site(tmp_path, "legacy") as far:
        options = write_config(tmp_path, url_mount(far.url, "far", TOOL_OF_SECRET, 'on_change = "allow"'))
        with site(tmp_path / "server", "--auth", "oauth", *options) as listening:
            signed = Signed(listening)
            people = People(signed)
            set_secret(listening.state, "TOOL", "key-first-of-ada", owner)
            people.wait_listed("ada")
            file = listening.state / "cache/mounts/far.json"
            assert eventually(lambda: count_rows(listening.state) == 1 if owner else file.exists())
        options = write_config(tmp_path, url_mount(far.url, "far", TOOL_OF_SECRET))
        with site(tmp_path / "server", "--auth", "oauth", *options) as listening:
            signed.site, signed.issuer = listening, listening.url
            assert eventually(lambda: "far__first-of-ada" in list_far(people, "ada"))
            state, log = listening.state, listening.log()
    assert find_files_with(state, "key-first-of-ada") == []
    assert "key-first-of-ada" not in log
