"""Each attempt at each level: it fails where the table says so, and comes off where the level does not stop it."""

import os
import shutil
import subprocess
from collections.abc import Iterator
from typing import Any

import pytest

from tests.escape.attempt import Attempt
from tests.escape.attempts import ATTEMPTS, limits
from tests.escape.ground import NOBODY, SYSTEM_PYTHON, Ground, ground
from tests.escape.table import table
from tests.escape.tricks import ABSENT
from tests.forked import ROOT

SERVERS = {"bwrap": ("bwrap", None), "bwrap-user": ("bwrap", NOBODY), "uid": ("uid", None), "none": ("none", None)}
NEEDED = {
    "bwrap": "apt-get install bubblewrap",
    "setpriv": "apt-get install util-linux",
    "unshare": "apt-get install util-linux",
    SYSTEM_PYTHON: "apt-get install python3",
}


@pytest.fixture(scope="module")
def tried(request: pytest.FixtureRequest) -> Iterator[Ground]:
    for program, install in NEEDED.items():
        assert shutil.which(program), f"{program} is missing: {install}"
    level, user = SERVERS[request.param]
    if os.geteuid() != 0 and (level != "bwrap" or user is not None):
        pytest.skip("only root has other users, and can become one")
    if level == "bwrap" and not _namespaces(user):
        pytest.skip("this machine lets nobody have namespaces")
    with ground(level, user=user) as made:
        yield made


def _namespaces(user: int | None) -> bool:
    """Whether bubblewrap works here at all, without us."""
    become = [] if user is None else ["setpriv", "--reuid", str(user), "--regid", str(user), "--clear-groups"]
    words = [*become, "bwrap", "--unshare-pid", "--unshare-net", "--ro-bind", "/", "/", "--proc", "/proc", "true"]
    return subprocess.run(words, cwd="/", capture_output=True, timeout=30, check=False).returncode == 0


def tries() -> Iterator[Any]:
    """Every attempt at every level where it is made."""
    for server, (level, user) in SERVERS.items():
        for attempt in ATTEMPTS:
            if level not in attempt.untried and not (attempt.rooted and user is not None):
                soaks = attempt in limits.LIMITS if user is not None else attempt.dear and level != "bwrap"
                marks = pytest.mark.soak if soaks else ()  # in a sandbox of root's server they are always tried
                yield pytest.param(server, attempt, id=f"{server}-{attempt.name.replace(' ', '-')}", marks=marks)


@pytest.mark.parametrize(("tried", "attempt"), [*tries()], indirect=["tried"], scope="module")
def test_an_attempt_fails_where_its_level_stops_it(tried: Ground, attempt: Attempt) -> None:
    level = tried.level
    others = [each for each in ATTEMPTS if each.script and not each.alone and level not in each.untried]
    got = tried.evidence(attempt, others)
    came_off = bool(got) if attempt.act else tried.token in got
    assert "BROKEN" not in got and "(no verdict)" not in got, got
    if level in attempt.stopped:
        assert not came_off, got
    elif level not in attempt.unsure and ABSENT not in got and os.geteuid() == 0:
        assert came_off, got
    assert tried.server.poll() is None or "outlives the server" in attempt.name, tried.signed.site.log()[-2000:]


def test_the_page_says_which_attempts_each_level_stops() -> None:
    page = (ROOT / "docs" / "security.md").read_text()
    assert table() in page


def test_there_are_enough_attempts_and_each_has_a_name_of_its_own() -> None:
    assert len({attempt.name for attempt in ATTEMPTS}) == len(ATTEMPTS) >= 60
