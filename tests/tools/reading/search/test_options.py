"""Engine options at the start: names, addresses and keys, and that no key is ever shown."""

import asyncio
import logging
import os
import subprocess
from pathlib import Path

import pytest

from tests.clients.raw_client import COMMAND, PATIENCE
from tests.tools.engines import answers
from tests.tools.engines.fake_engines import KEYS, street
from tests.tools.reading.search.test_search import answered
from tests.tools.tool_calls import text
from toolgate.server.config import load
from toolgate.tools.reading.search.api_keys import read_api_keys
from toolgate.tools.reading.search.engines import ENGINES, KEYED, choose_engines


def test_engines_are_chosen_by_name_and_may_have_another_address() -> None:
    names = ["github", " HackerNews ", "mdn=http://127.0.0.1:1/x", "searxng=https://s.example/sub/"]
    engines = {engine.name: engine.url for engine in choose_engines(names)}
    assert list(engines) == ["github", "hackernews", "mdn", "searxng"]
    assert (engines["mdn"], engines["searxng"]) == ("http://127.0.0.1:1/x", "https://s.example/sub/search")


def test_an_address_or_a_key_adds_its_engine_to_the_standard_ones() -> None:
    standard = [engine.name for engine in choose_engines()]
    names = [engine.name for engine in choose_engines((), "https://s.example", {"kagi": "k"})]
    assert names == [*standard, "searxng", "kagi"]


@pytest.mark.parametrize(
    ("entry", "told"),
    [
        ("altavista", "unknown search engine 'altavista'; known: duckduckgo"),
        ("github=ftp://x/", "http or https"),
        ("github=http://[::1/", "http or https"),
        ("searxng", "--searxng URL"),
        ("brave-api", "TOOLGATE_BRAVE_API_KEY, or a line in --search-keys FILE"),
        ("tavily=https://t.example/", "TOOLGATE_TAVILY_API_KEY"),
    ],
)
def test_an_unusable_engine_entry_is_refused_with_what_to_do(entry: str, told: str) -> None:
    with pytest.raises(ValueError) as error:
        choose_engines(["github", entry])
    assert told in str(error.value)


def test_keys_come_from_a_file_and_the_environment_beats_it(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text("# ours\n\nbrave-api = one\nExa='two'\n")
    environment = {"TOOLGATE_BRAVE_API_KEY": "three", "TOOLGATE_KAGI_API_KEY": "four"}
    assert read_api_keys(file, environment) == {"brave-api": "three", "exa": "two", "kagi": "four"}
    assert read_api_keys(None, {}) == {}


@pytest.mark.parametrize("line", ["SECRET", "altavista = SECRET", "exa = SECRET\x7f", "exa = SECRET é", "exa ="])
def test_an_unusable_key_is_refused_without_being_shown(tmp_path: Path, line: str) -> None:
    file = tmp_path / "keys"
    file.write_text(line)
    with pytest.raises(ValueError) as error:
        read_api_keys(file, {})
    assert "SECRET" not in str(error.value)
    with pytest.raises(ValueError, match="can't be read"):
        read_api_keys(tmp_path / "none", {})


@pytest.mark.parametrize(
    ("flags", "environment", "words"),
    [
        ([], {"TOOLGATE_BRAVE_API_KEY": "x" * 501}, "the key for brave-api must be 1 to 500 printable"),
        (["--engines", "mojek"], {}, "unknown search engine 'mojek' (did you mean mojeek?)"),
        (["--search-keys", "none"], {}, "none can't be read"),
    ],
)
def test_a_wrong_engine_or_key_stops_the_start_over_stdio(
    tmp_path: Path, flags: list[str], environment: dict[str, str], words: str
) -> None:
    """There the engines are loaded by the first search, but not their errors."""
    told = subprocess.run(
        [COMMAND, "--state", str(tmp_path / "state"), *flags],
        env={**os.environ, **environment},
        cwd=tmp_path,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )
    assert told.returncode == 2
    assert words in told.stderr


def test_keys_are_in_no_command_line_and_no_environment_of_a_child() -> None:
    environment = {f"TOOLGATE_{name.upper().replace('-', '_')}_API_KEY": "SECRET" for name in ("tavily", "exa")}
    for flags in ({}, {"http": "true"}):
        given = load.load(flags, {**environment, "HOME": "/"})
        assert "SECRET" not in str(given.to_flags()) + str(given.command_environment)


def test_a_server_that_a_command_starts_has_the_keys_and_no_token() -> None:
    keys = {"TOOLGATE_EXA_API_KEY": "SECRET", "TOOLGATE_BRAVE_API_KEY": "SECRET"}
    given = load.load({}, {**keys, "TOOLGATE_TOKEN": "TOKEN", "TOOLGATE_NAME": "x", "HOME": "/"})
    assert given.server_environment == {**keys, "HOME": "/"}


def test_no_key_is_in_a_log_an_error_or_an_answer(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)

    async def scenario() -> None:
        for answer in (
            answered("no", 401),
            answered("boom", 500),
            answered(b"{"),
            (302, {"location": "http://127.0.0.2/"}, b""),
        ):
            async with street(dict.fromkeys(KEYED, answer)) as place:
                output = await place.find()
                told = f"{text(output)} {output.structured} {place.search.engines} {place.search.__dict__}"
                assert "key-of" not in told
                sent = [key for request in place.site.requests for key in KEYS.values() if key in str(request.headers)]
                assert len(sent) == len(KEYED)

    asyncio.run(scenario())
    assert "key-of" not in caplog.text


def test_a_key_does_not_follow_a_redirect_to_another_place() -> None:
    async def scenario() -> None:
        async with street({"github": answers.without("github")}) as other:
            location = other.site.url("/github").replace("127.0.0.1", "localhost")
            async with street({"kagi": (302, {"location": location}, b"")}) as place:
                place.web.allowed = type(place.web.allowed).parse(["127.0.0.1", "localhost"])
                await place.find()
                assert [name for name in other.site.requests[0].headers if name == "authorization"] == []

    asyncio.run(scenario())


def test_every_engine_is_one_row_with_a_name_of_its_own() -> None:
    names = [engine.name for engine in ENGINES]
    assert len(set(names)) == len(names) >= 21
    assert set(answers.SHAPES) == set(names)
