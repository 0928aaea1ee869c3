"""The official conformance suite against a server that has nothing but what it mounts: what passes alone passes
through, whichever era is spoken with the mounted server."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conformance.runs import RUNS, carry_out, deviations, mounted

NOT_PASSED_ON = (  # scenarios
    "server-sse-polling",  # a mounted tool can't close the stream of our client
    "sep-2640-skills-enumeration",  # both servers have a skill toolgate-tools: one's URI begins with the mount's name
    "sep-2640-skills-directory",  # skills are not passed on: those of the server in front are found
    "tasks-",
)
OF_SESSIONS = (  # a server with sessions asks one question at a time, without a name, and whoever has declared nothing
    "input-required-result-basic-elicitation",
    "input-required-result-ignore-extra-params",
    "input-required-result-multiple-input-requests",
    "server-stateless",
)
EXCEPT = {"modern": NOT_PASSED_ON, "legacy": (*NOT_PASSED_ON, *OF_SESSIONS)}


@pytest.fixture(scope="module", params=["modern", "legacy"])
def through(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, str]]:
    """Yield the URL of the server, and the era of its mount."""
    with mounted(tmp_path_factory.mktemp("mounted") / request.param, request.param) as url:
        yield url, request.param


@pytest.mark.soak
@pytest.mark.parametrize("name", RUNS)
def test_what_passes_alone_passes_through_a_mount(through: tuple[str, str], tmp_path: Path, name: str) -> None:
    url, era = through
    amiss = [each for each in deviations(name, carry_out(name, url, tmp_path)) if not each.startswith(EXCEPT[era])]
    if amiss:
        pytest.fail("\n".join([f"{len(amiss)} things are amiss", *amiss]), pytrace=False)
