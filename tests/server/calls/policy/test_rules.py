"""The rules of --deny, --allow and --approve: their meaning and their grammar."""

import time
from typing import Any

import pytest

from toolgate.server.base.errors import UsageError
from toolgate.server.base.principals import rule_words
from toolgate.server.calls.policy.rules import MAX_COMMAND, RuleCaller, Rules, parse_rules
from toolgate.server.config import load
from toolgate.server.protocol.session import Session
from toolgate.tools.api.tool import Tool, tool


@tool(name="Bash", scope="tools:shell")
async def bash(command: str) -> str:
    """Run a command."""
    return command


@tool
async def git_log() -> str:
    """A tool of a plugin."""
    return ""


@tool(name="exec")
async def execute(command: list[str]) -> str:
    """A tool that takes a command as a list of words."""
    return ""


git_log.plugin = "history"
EVERYBODY = RuleCaller(frozenset(("local",)), Session("local"))


def verdict(
    command: str = "",
    of: Tool = bash,
    caller: RuleCaller = EVERYBODY,
    arguments: dict[str, Any] | None = None,
    **words: str,
) -> str:
    made = Rules(**{name: parse_rules([text]) for name, text in words.items()})
    return made.verdict(of, {"command": command} if arguments is None else arguments, caller)[0]


@pytest.mark.parametrize(
    ("rule", "hit"),
    [
        ("Bash", bash),
        ("bash", bash),  # a slip must not let it through
        ("B*", bash),
        ("*", git_log),
        ("git_*", git_log),
        ("scope:tools:shell", bash),
        ("scope:tools:*", bash),
        ("plugin:history", git_log),
        ("plugin:h*", git_log),
    ],
)
def test_a_rule_names_tools_by_name_scope_or_plugin(rule: str, hit: Tool) -> None:
    assert verdict(of=hit, deny=rule) == "denied"


@pytest.mark.parametrize("rule", ["Bas", "Bash2", "scope:tools:web", "plugin:*", "plugin:Bash", "git_*", "KillBgTask"])
def test_a_rule_is_about_nothing_else(rule: str) -> None:
    assert verdict(deny=rule, approve=rule) == "allowed"


def test_deny_wins_over_allow_and_allow_over_approve() -> None:
    assert verdict("ls") == "allowed"
    assert verdict("ls", approve="Bash") == "asked"
    assert verdict("ls", approve="Bash", allow="Bash(ls*)") == "allowed"
    assert verdict("rm x", approve="Bash", allow="Bash(ls*)") == "asked"
    assert verdict("ls", approve="Bash", allow="Bash", deny="scope:tools:shell") == "denied"
    assert verdict("ls", allow="Bash(git *)") == "allowed"  # it exempts, and forbids nothing


@pytest.mark.parametrize(
    "command",
    [
        "git push",
        "git push origin main",
        "git  push",
        "git\tpush",
        "cd x && git push",
        "cd x;git push",
        "true\ngit push",
        "git status | git push -f",
        "(git push)",
        "echo $(git push)",
        "echo `git push`",
        "git 'push'",
        'g"i"t push',
        "gi\\t push",
        "git \\\n push",
        "{ git push; }",
        "git push" + " x" * MAX_COMMAND,
        "# " * MAX_COMMAND,  # too long to be looked at
    ],
)
def test_deny_and_approve_look_for_a_command_wherever_it_stands(command: str) -> None:
    assert verdict(command, deny="Bash(git push*)") == "denied"
    assert verdict(command, approve="Bash(git push*)") == "asked"


@pytest.mark.parametrize("command", ["git pull", "echo x", "", "git stash push"])
def test_a_pattern_has_to_fit_a_whole_command(command: str) -> None:
    assert verdict(command, deny="Bash(git push*)") == "allowed"


@pytest.mark.parametrize(
    "command",
    [
        "git status; rm -rf ~",
        "git status\nrm -rf ~",
        "git status\r\nrm -rf ~",
        "git status && rm -rf ~",
        "git status || rm -rf ~",
        "git status & rm -rf ~",
        "git status | sh",
        "git status > ~/.bashrc",
        "git status < /etc/passwd",
        "git status $(rm -rf ~)",
        "git status `rm -rf ~`",
        "git status $HOME",
        "git status \\",
        "git status {a,b}",
        "git status\x00",
        "git status \x1b[2K",
        "cd x && git status",
        " git status",
        "'git' status",
        "git status" + " x" * MAX_COMMAND,
    ],
)
def test_allow_is_not_fooled_by_what_a_shell_reads_as_more_than_a_word(command: str) -> None:
    assert verdict(command, approve="*", allow="Bash(git status*)") == "asked"
    assert verdict(command, approve="*", allow="Bash(git stat?s*)") == "asked"


@pytest.mark.parametrize("command", ["git status", "git status -s .", 'git status "a b"', "git status é"])
def test_allow_lets_a_plain_command_through(command: str) -> None:
    assert verdict(command, approve="*", allow="Bash(git status*)") == "allowed"


def test_allow_takes_what_a_shell_reads_only_where_its_pattern_has_it() -> None:
    pattern = "Bash(git log * | head -?)"
    assert verdict("git log -p | head -5", approve="*", allow=pattern) == "allowed"
    assert verdict("git log -p | sh | head -5", approve="*", allow=pattern) == "asked"
    assert verdict("git log -p | head -;", approve="*", allow=pattern) == "asked"
    assert verdict("bash", of=bash, approve="*", allow="bash") == "asked"  # and names it letter for letter


def test_a_pattern_is_about_the_argument_command_of_any_tool() -> None:
    assert verdict(of=execute, arguments={"command": ["rm", "-rf", "x"]}, deny="exec(rm *)") == "denied"
    assert verdict(of=execute, arguments={"command": ["rm", "x"]}, approve="*", allow="exec(rm *)") == "asked"
    assert verdict(of=git_log, arguments={}, deny="git_log(*)") == "allowed"
    assert verdict(arguments={"command": 5}, deny="Bash(*)") == "allowed"  # which is no command either


def test_square_brackets_are_letters_of_a_command() -> None:
    assert verdict("[ -f x ]", approve="*", allow="Bash([ -f * ])") == "allowed"
    assert verdict("- -f x ]", approve="*", allow="Bash([ -f * ])") == "asked"


def test_a_rule_may_be_about_one_caller() -> None:
    ada = RuleCaller(frozenset(("u-" + "a" * 40, "account:ada")), Session("u-x", scopes=frozenset(("tools:web",))))
    for who in ("u-" + "a" * 40, "account:ada", "scope:tools:web"):
        assert verdict(caller=ada, deny=f"{who}=Bash") == "denied"
    for who in ("u-" + "b" * 40, "account:bob", "scope:tools:shell", "local", "github:ada"):
        assert verdict(caller=ada, deny=f"{who}=Bash") == "allowed"
    assert verdict(deny="scope:any=Bash") == "denied"  # the local user may do all
    (rule,) = parse_rules(["subject:robot=Bash"], lambda subject: f"name of {subject}")
    assert Rules([rule]).verdict(bash, {}, RuleCaller(frozenset(("name of robot",)), Session("x"))) == ("denied", rule)


def test_only_tools_denied_to_all_callers_are_not_listed() -> None:
    tools = {"Bash": bash, "git_log": git_log}
    denied = Rules(parse_rules(["git_*,Bash(rm *),local=Bash"]))
    assert list(denied.without_denied(tools)) == ["Bash"]
    assert Rules().without_denied(tools) is tools


@pytest.mark.parametrize(
    "word",
    [
        "",
        ",",
        "Bash()",
        "Bash(rm",
        "Bash)",
        "Bash(a)b",
        "(rm)",
        "=Bash",
        "ada=Bash",
        "ada@example.com=Bash",
        "account:=Bash",
        "u-123=Bash",
        "group:x=Bash",
        "Bash KillBgTask!!é",
        "scope:",
        "plugin:",
        "Bash:scope:tools:web",
        "Bash(a\nb)",
        "Bash(" + "x" * rule_words.MAX_RULE + ")",
    ],
)
def test_an_invalid_rule_is_refused(word: str) -> None:
    with pytest.raises(ValueError, match=r"is not a rule|has no rule|is not a caller|must be the name of a tool"):
        rule_words.check_rule_word(word)


@pytest.mark.parametrize(
    ("word", "torn"),
    [
        ("Bash,KillBgTask", ["Bash", "KillBgTask"]),
        ("Bash KillBgTask", ["Bash", "KillBgTask"]),
        ("Bash:KillBgTask:git_*", ["Bash", "KillBgTask", "git_*"]),
        ("scope:tools:shell", ["scope:tools:shell"]),
        ("account:ada=scope:tools:web,Bash", ["account:ada=scope:tools:web", "Bash"]),
        ("Bash(git push *:*, now),Bash(a (b) c)", ["Bash(git push *:*, now)", "Bash(a (b) c)"]),
        ("plugin:weather", ["plugin:weather"]),
    ],
)
def test_a_list_in_the_environment_or_a_flag_is_not_torn_apart(word: str, torn: list[str]) -> None:
    from_environment = load.load({}, {"TOOLGATE_DENY": word, "TOOLGATE_APPROVE": word})
    assert list(from_environment.approve) == torn
    assert [str(rule) for rule in parse_rules(from_environment.deny)] == torn
    from_flags = load.load({"deny": [word]}, {"TOOLGATE_DENY": "Other"})
    assert [str(rule) for rule in parse_rules(from_flags.deny)] == torn
    again = from_flags.to_flags()  # as `toolgate call` hands them on
    assert again[again.index("--deny") + 1] == word


def test_a_wrong_rule_ends_the_start_and_names_the_option() -> None:
    with pytest.raises(UsageError, match=r"--approve.*is not a rule"):
        load.load({"approve": ["Bash(rm"]}, {})
    with pytest.raises(UsageError, match="TOOLGATE_DENY"):
        load.load({}, {"TOOLGATE_DENY": "Bash:tool:x("})


def test_no_command_makes_a_pattern_take_long() -> None:
    pattern = "Bash(" + "*a" * 200 + "*b)"
    began = time.perf_counter()
    assert verdict("a" * (MAX_COMMAND - 1), deny=pattern) == "allowed"
    assert verdict("a" * (MAX_COMMAND - 1), approve="*", allow=pattern) == "asked"
    assert time.perf_counter() - began < 5
