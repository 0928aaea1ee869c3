"""`toolgate secret`: set from standard input, listed without values, removed."""

import json
from pathlib import Path

import pytest

from tests.server.features.mounts.mounted import url_mount, write_config
from tests.servers import forked_command
from tests.servers.forked_command import COMMAND
from toolgate.server.auth.tokens.access_tokens import OWN_ISSUER
from toolgate.server.base.principals.principal import Principal
from toolgate.server.cli import main

ADA = Principal(OWN_ISSUER, "ada", "").name


class Runs:
    """Commands on one state: exit code, output and errors."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._options = write_config(
            folder, url_mount("https://far.example", "far", 'headers = { K = "${secret:KEY}" }')
        )

    def __call__(self, *words: str, value: str = "") -> tuple[int, str, str]:
        env = {"PATH": "/usr/bin:/bin", "HOME": str(self._folder)}
        asked = [COMMAND, *words, "--state", str(self._folder / "state")]
        asked += self._options if words[0] == "secret" else ()
        done = forked_command.run(asked, value, cwd=self._folder, env=env)
        return done.returncode, done.stdout, done.stderr


@pytest.fixture
def run(tmp_path: Path) -> Runs:
    return Runs(tmp_path)


def test_a_secret_is_set_listed_and_removed(run: Runs) -> None:
    code, said, told = run("secret", "set", "KEY", value="hunter2-of-all\n")
    assert (code, said) == (0, "KEY is set for everybody\n") and "far will use it from the next call on" in told
    code, said, told = run("secret", "set", "OTHER", "--for", ADA, value="hunter2-of-ada")
    assert (code, said) == (0, f"OTHER is set for {ADA}\n")
    assert "no mount names it yet: write ${secret:OTHER} into its env, headers or url" in told
    code, said, _ = run("secret", "list")
    assert [line.split()[:2] for line in said.splitlines()] == [["NAME", "FOR"], ["KEY", "everybody"], ["OTHER", ADA]]
    code, said, _ = run("secret", "list", "--json")
    assert [(each["name"], each["for"]) for each in json.loads(said)["secrets"]] == [("KEY", ""), ("OTHER", ADA)]
    code, said, _ = run("secret", "list", "--for", ADA)
    assert "OTHER" in said and "KEY" not in said
    assert run("secret", "remove", "KEY")[:2] == (0, "KEY is removed for everybody\n")
    code, _, told = run("secret", "remove", "KEY")
    assert code == 1 and "'KEY' is not set for everybody: toolgate secret list shows what is" in told


def test_an_account_needs_no_sign_in_to_have_one(run: Runs) -> None:
    assert run("user", "add", "ada", value="correct horse battery\n")[0] == 0
    assert run("secret", "set", "KEY", "--for", "ada", value="x")[:2] == (0, "KEY is set for ada\n")
    assert run("secret", "remove", "KEY", "--for", "ada")[0] == 0
    assert run("secret", "set", "KEY", "--for", "ada", value="x")[0] == 0
    assert run("user", "remove", "ada")[0] == 0 and run("secret", "list")[1] == ""
    code, _, told = run("secret", "set", "KEY", "--for", "bob", value="x")
    assert code == 1 and "there is no person 'bob'" in told


@pytest.mark.parametrize(
    ("name", "value", "told"),
    [
        ("KEY", "", "the value of KEY is empty"),
        ("KEY", "\n", "the value of KEY is empty"),
        ("KEY", "a\0hunter2", "the value of KEY has a NUL character"),
        ("KEY", "hunter2" * 10_000, "at most 65536 are kept"),
        ("a b", "hunter2", "'a b' is not the name of a secret: a name is up to 64 letters"),
    ],
)
def test_bad_input_has_code_2_and_is_not_repeated(run: Runs, name: str, value: str, told: str) -> None:
    code, said, errors = run("secret", "set", name, value=value)
    assert code == 2 and told in errors and "hunter2" not in said + errors
    assert run("secret", "list")[1] == ""


def test_a_value_keeps_its_lines(run: Runs, tmp_path: Path) -> None:
    assert run("secret", "set", "KEY", value="a\n\nb\n\n")[0] == 0
    assert main.run(("secret", "list", "--state", str(tmp_path / "state"))) == 0
