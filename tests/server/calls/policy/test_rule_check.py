"""Rules that can match no call: which stop the start, and which wait for a plugin."""

from collections.abc import Callable, Collection
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.clients.raw_client import Server, eventually
from tests.server.calls.policy.test_rules import bash, git_log
from tests.server.cli.test_cli import run
from toolgate.server.base.errors import UsageError
from toolgate.server.calls.policy.rule_check import RuleCheck, RuleNames
from toolgate.server.calls.policy.rules import Rules, parse_rules
from toolgate.tools.api.registry import Registry

Start = Callable[..., Server]
SCOPES = ("tools:read", "tools:shell", "tools:plugins")
SIGNED_IN: dict[str, Collection[str] | None] = {"u-…": None, "account:…": ["ada", "bob"], "github:…": None}


def check(rule: str, option: str = "deny", **names: Any) -> None:
    known = {"tools": {"Bash": bash, "git_log": git_log}, "plugins": ["git"], "scopes": SCOPES, "callers": SIGNED_IN}
    found = RuleNames(**{**known, **names})
    RuleCheck(Rules(**{option: parse_rules([rule])}), lambda _: found).refuse(Registry())


@pytest.mark.parametrize(
    ("rule", "fault"),
    [
        ("Bsh", "there is no tool Bsh (did you mean Bash?); tools are Bash, git_log"),
        ("Bash,git_lg", "--deny git_lg: there is no tool git_lg (did you mean git_log?)"),
        ("hg_*", "no tool matches hg_*; tools are Bash, git_log"),
        ("plugin:gti", "there is no plugin gti (did you mean git?); plugins are git"),
        ("scope:tools:shel", "there is no scope tools:shel (did you mean tools:shell?)"),
        ("git_log(rm *)", "git_log has no argument `command`"),
        ("account:adda=Bash", "there is no account adda (did you mean ada?); accounts are ada, bob; toolgate user add"),
        ("oidc:ada=Bash", "no caller here is oidc:ada; callers are u-…, account:…, github:…, scope:…"),
        ("local=Bash", "no caller here is local; callers are u-…"),
        ("scope:tools:red=Bash", "there is no scope tools:red (did you mean tools:read?)"),
    ],
)
def test_a_rule_about_nothing_is_refused_with_what_there_is(rule: str, fault: str) -> None:
    with pytest.raises(UsageError) as refused:
        check(rule)
    assert fault in str(refused.value)


@pytest.mark.parametrize(
    "rule",
    [
        *("Bash", "bash", "git_*", "plugin:git", "scope:tools:read", "Bash(rm *)", "scope:tools:shell=plugin:g*"),
        *("account:ada=Bash", "github:17=*", f"u-{'0' * 40}=Bash"),
    ],
)
def test_a_rule_about_something_is_accepted(rule: str) -> None:
    check(rule)


def test_an_exemption_has_to_spell_the_name_as_it_is() -> None:
    with pytest.raises(UsageError, match=r"--allow bash: there is no tool bash \(did you mean Bash\?\)"):
        check("bash", "allow")


def test_only_a_glob_waits_for_a_plugin_to_come(caplog: pytest.LogCaptureFixture) -> None:
    for rule in ("hg_*", "plugin:hg*"):
        check(rule, can_grow=True)
        assert f"--deny {rule} matches nothing now" in caplog.text
    for rule in ("hg_log", "plugin:hg"):
        with pytest.raises(UsageError):
            check(rule, can_grow=True)


def test_a_name_may_be_that_of_a_tool_whose_plugin_could_not_be_loaded(caplog: pytest.LogCaptureFixture) -> None:
    check("hg_log", is_complete=False, can_grow=True)
    assert "--deny hg_log matches nothing now: there is no tool hg_log" in caplog.text


def test_a_list_of_hundreds_of_names_is_cut() -> None:
    accounts = [f"user{number}" for number in range(500)]
    with pytest.raises(UsageError, match="and 460 more") as refused:
        check("account:ada=Bash", callers={"account:…": accounts})
    assert len(str(refused.value)) < 600


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--deny", "Bsh"), "toolgate: --deny Bsh: there is no tool Bsh (did you mean Bash?)"),
        (("-t", "--port", "0", "--approve", "account:ada=Bash"), "toolgate user add ada adds it"),
        (("--deny", "account:ada=Bash"), "no caller here is account:ada; callers are local, scope:…"),
        (("-p", "missing"), "toolgate: --plugins: there is no folder "),
        (("-p", "/etc/hosts"), "toolgate: --plugins: /etc/hosts is neither a folder nor a Python file"),
        (("-p", ""), "--plugins: must be a path"),
    ],
)
def test_the_server_does_not_start_with_what_means_nothing(tmp_path: Path, words: tuple[str, ...], said: str) -> None:
    ended = run(tmp_path, *words)
    assert (ended.returncode, ended.stdout) == (2, "")
    assert said in ended.stderr and "Traceback" not in ended.stderr


def test_the_log_names_the_rule_whose_plugin_goes_away(start: Start, tmp_path: Path) -> None:
    folder = tmp_path / "plugins"
    folder.mkdir()
    source = 'from toolgate.tools import tool\n@tool\nasync def git_log() -> str:\n    """Log."""\n    return ""\n'
    (folder / "git.py").write_text(source)
    server = start("-p", str(folder), "--approve", "plugin:git", "--approve", "git_log")

    def logged(times: int) -> bool:
        told = ("--approve plugin:git matches nothing now: there is no plugin git", "--approve git_log matches nothing")
        return [server.log().count(line) for line in told] == [times, times]

    assert logged(0)
    for times in (1, 2):
        (folder / "git.py").unlink()
        assert eventually(partial(logged, times)), server.log()
        (folder / "git.py").write_text(source)
        assert eventually(lambda: "git_log" in str(server.request("tools/list")))
