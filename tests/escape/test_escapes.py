"""Each attempt at each level: it fails where the table says so, and succeeds where the level does not stop it."""

import os
import shutil
import subprocess
from collections.abc import Iterator
from typing import Any

import pytest

from tests.escape.attempt import Attempt
from tests.escape.attempts import ATTEMPTS, limits
from tests.escape.ground import NOBODY, SYSTEM_PYTHON, Ground, ground
from tests.escape.table import limits_table, table
from tests.escape.tricks import ABSENT
from tests.servers.forked_command import ROOT
from toolgate.tools.workspace.limits import ROWS

SERVERS = {  # level, the server's user if not root, whether it has control groups, and whether commands run at a node
    "bwrap": ("bwrap", None, True, False),
    "bwrap-ungrouped": ("bwrap", None, False, False),
    "bwrap-user": ("bwrap", NOBODY, True, False),
    "bwrap-node": ("bwrap", None, True, True),
    "uid": ("uid", None, True, False),
    "uid-ungrouped": ("uid", None, False, False),
    "uid-node": ("uid", None, True, True),
    "none": ("none", None, True, False),
    "none-node": ("none", None, True, True),
}
NEEDED = {
    "bwrap": "apt-get install bubblewrap",
    "setpriv": "apt-get install util-linux",
    "unshare": "apt-get install util-linux",
    SYSTEM_PYTHON: "apt-get install python3",
}
LIKE = {  # attempts on a limit that another one of `make test` exceeds by the same means
    "takes more processor time": "takes more processor time, deaf to the signal of it",
    "takes more memory that it shares": "takes more memory by files in memory",
    "bombs with forks of Python": "bombs with forks of bash",
    "fills /var/tmp": "fills /tmp",
}
AS_AT_BWRAP = ("takes more memory by files in memory", "starts more commands", "starts more tasks")


@pytest.fixture(scope="module")
def tried(request: pytest.FixtureRequest) -> Iterator[Ground]:
    for program, install in NEEDED.items():
        assert shutil.which(program), f"{program} is missing: {install}"
    level, user, grouped, at_node = SERVERS[request.param]
    if os.geteuid() != 0 and (level != "bwrap" or user is not None):
        pytest.skip("only root has other users, and can become one")
    if level == "bwrap" and not _namespaces(user):
        pytest.skip("this machine refuses namespaces to its users")
    with ground(level, user=user, grouped=grouped, at_node=at_node) as made:
        yield made


def _namespaces(user: int | None) -> bool:
    """Return whether bubblewrap works here at all."""
    become = [] if user is None else ["setpriv", "--reuid", str(user), "--regid", str(user), "--clear-groups"]
    words = [*become, "bwrap", "--unshare-pid", "--unshare-net", "--ro-bind", "/", "/", "--proc", "/proc", "true"]
    return subprocess.run(words, cwd="/", capture_output=True, timeout=30, check=False).returncode == 0


def tries() -> Iterator[Any]:
    """Yield every attempt at every level."""
    for server, (level, user, grouped, _) in SERVERS.items():
        for attempt in ATTEMPTS if grouped else [each for each in ATTEMPTS if each.limit]:
            has_what_it_takes = (user is None or not attempt.rooted) and (
                (user is None and grouped) or not attempt.grouped
            )
            if level not in attempt.untried and has_what_it_takes:
                soaks = _soaks(attempt, server)
                marks = pytest.mark.soak if soaks else ()  # at the bwrap level of a root server they are always tried
                yield pytest.param(server, attempt, id=f"{server}-{attempt.name.replace(' ', '-')}", marks=marks)


def _soaks(attempt: Attempt, server: str) -> bool:
    """Return whether it is left to `make soak`: not limits at root's bwrap, and not quick ones or those held
    otherwise."""
    if server.endswith("-node") or (attempt.name in LIKE and server != "bwrap-ungrouped"):
        return True
    if server == "uid" and attempt.name in AS_AT_BWRAP:
        return True
    if server == "bwrap-ungrouped":
        return not (attempt.limit == "memory" and attempt.rooted)
    if server in ("bwrap-user", "uid-ungrouped"):  # root's bwrap stops the same by the same means
        return attempt.limit != "" or attempt in limits.LIMITS or ATTEMPTS.index(attempt) % 4 != 0
    return attempt.dear and server != "bwrap"


@pytest.mark.parametrize(("tried", "attempt"), [*tries()], indirect=["tried"], scope="module")
def test_an_attempt_fails_at_each_level_that_stops_it(tried: Ground, attempt: Attempt) -> None:
    level = tried.level
    others = [each for each in ATTEMPTS if each.script and not each.alone and level not in each.untried]
    got = tried.evidence(attempt, others)
    came_off = bool(got) if attempt.act else tried.token in got
    was_ended = attempt.limit and " over the limit of " in got  # with the program that would report its verdict
    assert "BROKEN" not in got and (was_ended or "(no verdict)" not in got), got
    if level in attempt.stopped:
        assert not came_off, got
    elif level not in attempt.unsure and ABSENT not in got and os.geteuid() == 0:
        assert came_off, got
    assert tried.server.poll() is None or "outlives the server" in attempt.name, tried.signed.site.log()[-2000:]


def test_the_page_says_which_attempts_each_level_stops() -> None:
    page = (ROOT / "docs" / "security.md").read_text()
    assert table() in page


def test_the_page_says_what_holds_each_limit() -> None:
    assert limits_table() in (ROOT / "docs" / "security.md").read_text()


def test_each_limit_has_an_attack_on_it() -> None:
    assert {*limits.HELD_BY} == {*ROWS}
    assert {each.limit for each in ATTEMPTS if each.limit} | {*limits.ELSEWHERE} == {*ROWS}
    assert {*LIKE, *LIKE.values(), *AS_AT_BWRAP} <= {each.name for each in ATTEMPTS}
    for path, name in limits.ELSEWHERE.values():
        assert f"def {name}(" in (ROOT / path).read_text()


def test_there_are_enough_attempts_and_each_has_a_name_of_its_own() -> None:
    assert len({attempt.name for attempt in ATTEMPTS}) == len(ATTEMPTS) >= 60
