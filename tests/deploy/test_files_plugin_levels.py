"""The file tools over HTTP at each sandbox level: a caller reaches what its commands may, and never more."""

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.clients.raw_http_client import site
from tests.server.auth.minted_tokens import Signed, asked
from tests.servers.reserved_users import kept_users

ADA, EVE = "ada", "eve"
LEVELS = ("bwrap", "uid", "none")

pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason="only root has all levels"),
    pytest.mark.programs("bwrap"),
]


class People:
    """A server with two people, at one level."""

    def __init__(self, signed: Signed, level: str) -> None:
        self.level = level
        self.signed = signed
        self.state = signed.site.state
        self._tokens = {who: signed.token(who) for who in (ADA, EVE)}

    def call(self, name: str, who: str = ADA, token: str = "", **arguments: Any) -> tuple[str, bool]:
        """Return the text of a call and whether it is an error."""
        _, raw, answer = asked(
            self.signed, token or self._tokens[who], "tools/call", {"name": name, "arguments": arguments}
        )
        assert answer is not None and "result" in answer, raw
        return answer["result"]["content"][0]["text"], answer["result"]["isError"]

    def text(self, name: str, who: str = ADA, **arguments: Any) -> str:
        text, is_error = self.call(name, who, **arguments)
        assert not is_error, text
        return text

    def refusal(self, name: str, who: str = ADA, **arguments: Any) -> str:
        text, is_error = self.call(name, who, **arguments)
        assert is_error, text
        return text

    def root(self, who: str = ADA) -> Path:
        return Path(self.text("Bash", who, command="pwd -P").strip())


QUICK = [*LEVELS[:2], pytest.param("none", marks=pytest.mark.soak)]  # the last test has none, too


@pytest.fixture(scope="module", params=QUICK)
def people(request: pytest.FixtureRequest) -> Iterator[People]:
    users = kept_users(10)
    level = request.param
    words = ["-p", "builtin:files", "--auth", "oauth", "--sandbox", level]
    words += [
        "--limit",
        "workspace=8M",
        "--limit",
        "file-size=4M",
        "--limit",
        "calls=0",
        "--limit",
        "calls:tools:shell=0",
    ]
    words += ["--sandbox-uids", f"{users[0]}-{users[-1]}"] if level != "none" else []
    folder = Path(tempfile.mkdtemp(prefix="toolgate-files-"))
    folder.chmod(0o711)  # other users have to pass
    with contextlib.ExitStack() as stack:
        stack.callback(shutil.rmtree, folder)
        yield People(Signed(stack.enter_context(site(folder, *words, workspace=False))), level)


def test_files_are_changed_as_the_user_of_the_commands(people: People) -> None:
    root = people.root()
    assert people.text("Write", file_path="src/a.py", content="one\n") == "created src/a.py: 1 line"
    people.text("Bash", command="echo two >>src/a.py; chmod 750 src/a.py")
    assert people.text("Edit", file_path="src/a.py", old_string="two", new_string="2") == "edited src/a.py: line 2"
    assert people.text("Read", file_path=str(root / "src/a.py")) == "1\tone\n2\t2"
    assert people.text("Glob", pattern="**/*.py") == "src/a.py"
    assert people.text("Grep", pattern="^2$") == "src/a.py\n2:2"
    assert people.text("Bash", command="echo more >src/a.py; stat -c %a src/a.py; id -u") == f"750\n{owner(people)}\n"
    own = {path.stat().st_uid for path in (root / "src", root / "src/a.py")}
    assert own == {owner(people)}


def owner(people: People) -> int:
    return people.root().stat().st_uid


def test_what_commands_may_not_reach_the_tools_may_not(people: People) -> None:
    root, other = people.root(), people.root(EVE)
    people.text("Write", EVE, file_path="hers", content="secret\n")
    database, keys = people.state / "state.db", people.state / "keys"
    people.text(
        "Bash",
        command=f"ln -sf {other} eve; ln -sf {database} db; ln -sf {keys} keys; ln -sf /etc/shadow shadow; "
        "ln -sf /proc/1/environ environ; mkdir -p in; ln -sfn / in/root",
    )
    targets = [
        "eve/hers",
        "db",
        "shadow",
        "environ",
        str(other / "hers"),
        str(database),
        "/etc/shadow",
        "../../state.db",
    ]
    targets += [
        f"in/root{database}",
        "/proc/1/environ",
        f"/proc/self/root{database}",
        f"/proc/self/cwd/../../{database}",
    ]
    if people.level == "bwrap":  # its process 1 is the caller's own
        targets = [each for each in targets if "environ" not in each]
    before = database.stat().st_ino
    for path in targets:
        for name, given in (
            ("Read", {}),
            ("Write", {"content": "x"}),
            ("Edit", {"old_string": "secret", "new_string": "x"}),
        ):
            said = people.refusal(name, file_path=path, **given)
            assert "secret" not in said and "worker failed" not in said, (name, path)
        assert people.call("Grep", pattern="(?s).", path=path)[1] or "nothing" in people.text(
            "Grep", pattern=".", path=path
        )
    for path in ("eve", "keys", str(people.state), str(keys)):
        text, is_error = people.call("Glob", pattern="**/*", path=path)
        own = people.level == "bwrap" and path == str(people.state)  # what it shows of that are the own files
        assert is_error or text.startswith("[no file") or own, text
        assert not {"hers", "state.db", "signing"} & {Path(line).name for line in text.splitlines()}
    assert (other / "hers").read_text() == "secret\n" and database.stat().st_ino == before
    assert not list(root.rglob(".tmp-*"))


def test_output_of_a_command_is_read_and_system_files_only_in_namespaces(people: People) -> None:
    text = people.text("Bash", command="seq 20000")
    path = next(word for word in text.replace("]", " ").split() if str(people.state) in word)
    assert people.text("Read", file_path=path, offset=20_000).startswith("20000\t20000")
    said, is_error = people.call("Read", file_path="/usr/bin/ldd", limit=1)
    if people.level == "bwrap":
        assert said.startswith("1\t#!") and not is_error
    else:
        assert "is outside the workspace" in said and said.endswith("use Bash") and is_error


def test_a_scope_for_reading_changes_nothing(people: People) -> None:
    people.text("Write", file_path="held", content="held\n")
    token = people.signed.token(ADA, granted=["tools:read"])
    assert people.call("Read", token=token, file_path="held") == ("1\theld", False)
    assert people.call("Glob", token=token, pattern="held") == ("held", False)
    for name in ("Write", "Edit"):
        response, _, _ = asked(people.signed, token, "tools/call", {"name": name, "arguments": {"file_path": "held"}})
        assert response.status == 403


def test_limits_hold_and_what_is_full_says_so(people: People) -> None:
    if people.level == "none":
        pytest.skip("limits of the workspace need a sandbox")
    people.text("Write", EVE, file_path="old", content="old\n")
    large = {"file_path": "old", "content": "x" * (5 * 2**20)}
    assert "no room for it" in people.refusal("Write", EVE, **large)
    assert people.text("Read", EVE, file_path="old") == "1\told"
    people.call("Bash", EVE, command="for n in 1 2 3; do head -c 4M /dev/zero >full$n; done; sleep 3")
    for _ in range(2):
        assert "over its limit" in people.refusal("Write", EVE, file_path="more", content="x")
    assert people.text("Read", EVE, file_path="old") == "1\told"
    people.text("Bash", EVE, command="rm full*")
    assert people.text("Write", EVE, file_path="more", content="x") == "created more: 1 line"


def test_the_servers_own_folder_is_closed_in_a_workspace_around_it(tmp_path: Path) -> None:
    words = ["-p", "builtin:files", "--auth", "oauth", "--sandbox", "none", "--workspace", str(tmp_path)]
    with site(tmp_path, *words, workspace=False) as opened:
        people = People(Signed(opened), "none")
        token = people.signed.token(ADA, granted=["tools:read"])
        key = people.state / "keys" / "signing"
        (tmp_path / "own.txt").write_text("own\n")
        (tmp_path / "link").symlink_to(key)
        for path in (str(key), "state/keys/signing", "link"):
            for name, given in (("Read", {"file_path": path}), ("Grep", {"path": path, "pattern": "."})):
                text, is_error = people.call(name, token=token, **given)
                assert is_error and text.endswith("it is in the server's own folder"), text
        assert "own folder" in people.refusal("Write", file_path=str(people.state / "new"), content="x")
        assert "own folder" in people.refusal("Glob", pattern="**/*", path="state")
        found = people.call("Glob", token=token, pattern="**/*", ignored=True)[0].splitlines()
        found += people.call("Grep", token=token, pattern=".", mode="files")[0].splitlines()
        assert "own.txt" in found and not [line for line in found if line.startswith("state/")]
        people.text("Bash", command="seq 20000")
        output = next(people.state.rglob("output"))
        assert people.call("Read", token=token, file_path=str(output), offset=20_000)[0].startswith("20000\t20000")
