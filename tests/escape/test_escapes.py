"""Each attempt at each level: it fails where the table says so, and comes off where the level does not stop it."""

import os
import shutil
import subprocess
from collections.abc import Iterator

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


@pytest.fixture(scope="module", params=SERVERS)
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


def named(attempt: Attempt) -> str:
    return attempt.name.replace(" ", "-")


@pytest.mark.parametrize("attempt", ATTEMPTS, ids=named)
def test_an_attempt_fails_where_its_level_stops_it(tried: Ground, attempt: Attempt) -> None:
    if not is_the_soaks(tried, attempt):
        made(tried, attempt)


@pytest.mark.soak
@pytest.mark.parametrize("attempt", limits.LIMITS, ids=named)
def test_limits_hold_everywhere(tried: Ground, attempt: Attempt) -> None:
    if is_the_soaks(tried, attempt):
        made(tried, attempt)


def is_the_soaks(tried: Ground, attempt: Attempt) -> bool:
    """Limits that are tried in a sandbox of root's server, and take long."""
    if tried.user is not None:
        return attempt in limits.LIMITS
    return attempt.dear and tried.level != "bwrap"


def made(tried: Ground, attempt: Attempt) -> None:
    level = tried.level
    if level in attempt.untried or (attempt.rooted and tried.user is not None):
        return
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
