"""Tools that need a person's approval: asked in both eras, valid once, and never assumed."""

import asyncio
import json
import re
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.clients.raw_client import PATIENCE, REVISIONS, STATELESS, Refusal, Server
from tests.clients.raw_http_client import Http
from tests.clients.raw_task_client import KNOWS, created, ended, get, text, until
from tests.server.auth.minted_tokens import asked as asked_by
from tests.server.auth.minted_tokens import signed_site
from tests.servers.http_in_process import Inside, inside
from tests.servers.isolated_plugins import EACH_WAY
from toolgate.server.calls import display
from toolgate.server.calls.policy.rules import Rules, parse_rules
from toolgate.server.methods import tools as tools_method

pytestmark = pytest.mark.pairs

Start = Callable[..., Server]
FORMS = {"elicitation": {}}
RUN = {"command": "echo run >> runs; echo done"}
ACCEPT = {"action": "accept", "content": {}}
ASKING = ("2025-06-18", "2025-11-25")
COUNTED = '''
"""Asks, and counts how often it runs."""
from pathlib import Path
import asyncio
from toolgate.tools import Context, tool

NAME = {"type": "object", "properties": {"name": {"type": "string"}}}

def _count():
    with (Path(__file__).parent / "runs.txt").open("a") as runs:
        runs.write("run\\n")

@tool
async def asker(ctx: Context) -> str:
    "Ask twice."
    _count()
    one = await ctx.elicit("first?", NAME, key="one")
    two = await ctx.elicit("second?", NAME, key="two")
    return f"{one.content['name']} {two.content['name']}"

@tool
async def group_asker(ctx: Context) -> str:
    "Ask in a group."
    _count()
    async with asyncio.TaskGroup() as group:
        one = group.create_task(ctx.elicit("first?", NAME, key="one"))
    return one.result().content["name"]
'''


def runs(folder: Path) -> int:
    """Return how often RUN has run."""
    file = folder / "work" / "runs"
    return len(file.read_text().splitlines()) if file.exists() else 0


def counted(folder: Path) -> tuple[str, str]:
    """Return the options for a plugin that asks."""
    (folder / "own").mkdir(exist_ok=True)
    (folder / "own" / "counted.py").write_text(COUNTED)
    return "-p", str(folder / "own")


def counts(folder: Path) -> int:
    file = folder / "own" / "runs.txt"
    return len(file.read_text().splitlines()) if file.exists() else 0


def begun(server: Server, before: dict[str, Any], tool: str, arguments: Any, answers: Any, **changed: Any) -> int:
    given = {"inputResponses": answers, "requestState": before.get("requestState"), **changed}
    given = {name: value for name, value in given.items() if value is not None}
    return server.begin("tools/call", {"name": tool, "arguments": arguments, **given})


def retried(server: Server, before: dict[str, Any], answer: Any, tool: str = "Bash", **changed: Any) -> dict[str, Any]:
    """Retry the call with `answer` to all questions."""
    arguments = changed.pop("arguments", RUN if tool == "Bash" else {})
    answers = changed.pop("answers", dict.fromkeys(before["inputRequests"], answer))
    result: dict[str, Any] = server.result(begun(server, before, tool, arguments, answers, **changed))
    return result


def said(result: dict[str, Any]) -> str:
    return "\n".join(block["text"] for block in result["content"])


def is_question(result: dict[str, Any]) -> bool:
    """Return whether the result is the approval question and nothing else."""
    (key,) = result.get("inputRequests", {"": None})
    return result.get("resultType") == "input_required" and key.startswith("approval-")


# -- a request to the client, up to 2025-11-25


@pytest.mark.parametrize("revision", ASKING)
def test_a_tool_runs_when_the_person_accepts(connect: Start, tmp_path: Path, revision: str) -> None:
    server = connect("--approve", "Bash", revision=revision, capabilities=FORMS, answer=lambda *_: ACCEPT)
    assert server.text("Bash", {**RUN, "timeout": 9_000}) == "done\n"
    assert runs(tmp_path) == 1
    (question,) = [message for message in server.messages if message.get("method") == "elicitation/create"]
    assert question["params"] == {
        "message": 'Run Bash with these arguments?\n\ncommand: "echo run >> runs; echo done"\ntimeout: 9000',
        "requestedSchema": {"type": "object", "properties": {}},
    }
    assert server.text("ListBgTasks") == "no background tasks"
    assert len(server.notes("elicitation/create")) == 1


@pytest.mark.parametrize("revision", ASKING)
@pytest.mark.parametrize(
    ("answer", "told"),
    [
        ({"action": "decline"}, "declined"),
        ({"action": "cancel"}, "closed the question"),
        ({"action": "yes"}, "no shape"),
        ({}, "no shape"),
        ({"action": "accept", "content": 5}, "no shape"),
        ("accept", "no shape"),
    ],
)
def test_nothing_else_than_accept_runs_it(start: Start, tmp_path: Path, revision: str, answer: Any, told: str) -> None:
    server = start("--approve", "*", revision=revision, capabilities=FORMS, answer=lambda *_: answer)
    assert told in server.error("Bash", RUN)
    assert runs(tmp_path) == 0


@pytest.mark.parametrize("revision", ASKING)
@pytest.mark.parametrize(
    ("action", "who"), [("decline", "declined"), ("cancel", "closed the question without an answer")]
)
def test_a_refusal_faster_than_a_person_is_not_reported_as_the_persons(
    start: Start, revision: str, action: str, who: str
) -> None:
    times = [0.3]

    def answer(*_: Any) -> Any:
        threading.Event().wait(times[-1])
        return {"action": action}

    server = start("--approve", "Bash", revision=revision, capabilities=FORMS, answer=answer)
    hasty = f"The client {who} at once, so probably no person saw the question; the command did not run."
    assert f"The person {who}; the command did not run. Don't work around it" in server.error("Bash", RUN)
    times.append(0.0)
    assert any(hasty in server.error("Bash", RUN) for _ in range(3))  # of a busy machine one may come late


@pytest.mark.parametrize(
    ("seconds", "told"), [(0.0, "probably no person saw the question"), (0.3, "The person declined")]
)
def test_a_retry_that_declines_at_once_is_not_reported_as_the_persons(start: Start, seconds: float, told: str) -> None:
    server = start("--approve", "Bash", revision=STATELESS, capabilities=FORMS)

    def refused() -> str:
        first = server.call("Bash", RUN)
        threading.Event().wait(seconds)
        return said(retried(server, first, {"action": "decline"}))

    assert any(told in refused() for _ in range(3))  # as above


def test_a_client_that_answers_with_an_error_has_approved_nothing(start: Start, tmp_path: Path) -> None:
    assert "could not answer" in start("--approve", "Bash", capabilities=FORMS).error("Bash", RUN)
    assert runs(tmp_path) == 0


def test_an_unanswered_question_ends_within_the_hold(connect: Start, tmp_path: Path) -> None:
    server = connect("--approve", "Bash", "--hold", "2", capabilities=FORMS, answer=lambda *_: None)
    assert "no answer within 1.125 s" in server.error("Bash", RUN)
    assert server.notes("notifications/cancelled")
    assert runs(tmp_path) == 0


def test_the_persons_time_counts_against_the_tools_time(probe: Start) -> None:
    server = probe("--approve", "is_held", "--hold", "8", capabilities=FORMS, answer=lambda *_: ACCEPT)
    before, _, after = server.text("is_held").partition(" ")
    assert 0 < float(before) < 6 and before == after


@pytest.mark.parametrize("revision", REVISIONS)
def test_a_client_that_cant_be_asked_is_told_why(connect: Start, tmp_path: Path, revision: str) -> None:
    for capabilities in ({}, {"elicitation": {"url": {}}}):
        server = connect("--approve", "B*", revision=revision, capabilities=capabilities, answer=lambda *_: ACCEPT)
        told = server.error("Bash", RUN)
        if isinstance(server, Http):  # which has a page of its own
            assert "was not run" in told and "answer at http" in told
        else:
            assert "--approve B*" in told and "did not declare elicitation" in told and "--allow" in told
        assert not server.notes("elicitation/create")
    assert runs(tmp_path) == 0


@pytest.mark.parametrize("revision", ["2024-11-05", "2025-03-26"])
def test_a_revision_without_questions_cant_be_asked(start: Start, tmp_path: Path, revision: str) -> None:
    server = start("--approve", "Bash", revision=revision, capabilities=FORMS, answer=lambda *_: ACCEPT)
    assert "can't ask" in server.error("Bash", RUN)
    assert runs(tmp_path) == 0


def test_arguments_that_do_not_fit_are_nothing_to_ask_about(start: Start) -> None:
    server = start("--approve", "Bash", capabilities=FORMS, answer=lambda *_: ACCEPT)
    assert "timeout" in server.error("Bash", {"command": "true", "timeout": "soon"})
    assert not server.notes("elicitation/create")


def test_a_tool_that_asks_something_itself_is_approved_once(start: Start, tmp_path: Path) -> None:
    def answer(_method: str, params: dict[str, Any]) -> Any:
        return {"action": "accept", "content": {"name": params["message"][:6]}}

    server = start(*counted(tmp_path), "--approve", "plugin:counted", capabilities=FORMS, answer=answer)
    assert server.text("asker") == "first? second"
    messages = [params["message"] for params in server.notes("elicitation/create")]
    assert messages == ["Run asker (of the plugin counted), without arguments?", "first?", "second?"]
    assert counts(tmp_path) == 1


# -- a result that asks for input, on 2026-07-28


def test_an_approval_comes_with_the_retry_and_is_good_once(connect: Start, tmp_path: Path) -> None:
    server = connect("--approve", "Bash", revision=STATELESS, capabilities=FORMS)
    first = server.call("Bash", RUN)
    assert is_question(first) and runs(tmp_path) == 0
    ((key, request),) = first["inputRequests"].items()
    assert request["params"]["message"].endswith('command: "echo run >> runs; echo done"')
    assert key not in first["requestState"]
    assert said(retried(server, first, ACCEPT)) == "done\n"
    for _ in range(2):
        again = retried(server, first, ACCEPT)
        assert is_question(again) and set(again["inputRequests"]) != {key}
    assert is_question(server.call("Bash", RUN))
    assert runs(tmp_path) == 1


@pytest.mark.parametrize("revision", [STATELESS, ASKING[-1]])
def test_an_approval_in_one_folder_runs_no_call_in_another(start: Start, tmp_path: Path, revision: str) -> None:
    asked: list[str] = []

    def answer(_method: str, params: Any) -> Any:
        asked.append(params["message"])
        return ACCEPT

    server = start("--approve", "Bash(echo run*)", revision=revision, capabilities=FORMS, answer=answer)
    server.text("Bash", {"command": "mkdir a b; cd a"})
    first = server.call("Bash", RUN)
    if revision == STATELESS:
        asked += [request["params"]["message"] for request in first["inputRequests"].values()]
        server.text("Bash", {"command": "cd ../b"})
        again = retried(server, first, ACCEPT)
        assert is_question(again)
        asked += [request["params"]["message"] for request in again["inputRequests"].values()]
    else:
        server.text("Bash", {"command": "cd ../b"})
        server.text("Bash", RUN)
    ran = [name for name in ("a", "b") if (tmp_path / "work" / name / "runs").exists()]
    assert ran == ([] if revision == STATELESS else ["a", "b"])
    assert ["/work/a with" in asked[0], "/work/b with" in asked[1]] == [True, True]


def test_of_eight_retries_at_once_one_runs(connect: Start, tmp_path: Path) -> None:
    server = connect("--approve", "Bash", revision=STATELESS, capabilities=FORMS)
    first = server.call("Bash", RUN)
    answers = dict.fromkeys(first["inputRequests"], ACCEPT)
    ids = [begun(server, first, "Bash", RUN, answers) for _ in range(8)]
    results = [server.result(id) for id in ids]
    assert sum(map(is_question, results)) == 7
    assert runs(tmp_path) == 1


@pytest.mark.parametrize(("action", "told"), [("decline", "declined"), ("cancel", "closed the question")])
def test_a_no_is_final_for_its_question(start: Start, tmp_path: Path, action: str, told: str) -> None:
    server = start("--approve", "Bash", revision=STATELESS, capabilities=FORMS)
    first = server.call("Bash", RUN)
    refused = retried(server, first, {"action": action})
    assert refused["isError"] and told in said(refused)
    assert is_question(retried(server, first, ACCEPT))  # whoever thinks better of it is asked anew
    assert runs(tmp_path) == 0


def test_answers_without_a_state_are_no_approval(start: Start, tmp_path: Path) -> None:
    server = start("--approve", "Bash", revision=STATELESS, capabilities=FORMS)
    first = server.call("Bash", RUN)
    (key,) = first["inputRequests"]
    for answers in ({key: ACCEPT}, {"approval": ACCEPT}, {"approval-": ACCEPT, "question-1": ACCEPT}, {}):
        assert is_question(retried(server, first, None, requestState=None, answers=answers))
        other = server.call("Bash", RUN)  # another question's answer
        assert is_question(retried(server, other, None, answers=answers))
    for answer in (None, True, "accept", {"action": "Accept"}, {"action": ["accept"]}, {"action": None}, [ACCEPT]):
        assert is_question(retried(server, server.call("Bash", RUN), answer))
    with pytest.raises(Refusal) as caught:
        retried(server, server.call("Bash", RUN), None, answers=[ACCEPT])
    assert caught.value.code == -32602
    assert runs(tmp_path) == 0


def test_an_approval_is_for_its_tool_and_its_exact_arguments(start: Start, tmp_path: Path) -> None:
    server = start("--approve", "*", revision=STATELESS, capabilities=FORMS)
    first = server.call("Bash", RUN)
    for tool, arguments in (
        ("BackgroundBash", RUN),
        ("Bash", {"command": RUN["command"] + " "}),
        ("Bash", {**RUN, "timeout": 30_000}),
        ("Bash", None),
    ):
        with pytest.raises(Refusal) as caught:
            retried(server, first, ACCEPT, tool, arguments=arguments)
        assert caught.value.code == -32602
    state = first["requestState"]
    for forged in (state[:-4], state.swapcase(), "", 5, "A" * 400):
        with pytest.raises(Refusal):
            retried(server, first, ACCEPT, requestState=forged)
    assert runs(tmp_path) == 0
    assert said(retried(server, first, ACCEPT)) == "done\n"  # none of that has used it up


def test_an_approval_does_not_survive_the_server_but_the_question_does(start: Start, tmp_path: Path) -> None:
    one = start("--approve", "Bash", revision=STATELESS, capabilities=FORMS)
    first = one.call("Bash", RUN)
    assert one.close() == 0
    other = start("--approve", "Bash", revision=STATELESS, capabilities=FORMS)
    assert is_question(retried(other, first, ACCEPT))
    assert runs(tmp_path) == 0


@pytest.mark.parametrize("isolated", EACH_WAY)
def test_an_approval_carries_over_to_each_retry_of_a_tool_that_asks_once(
    start: Start, tmp_path: Path, isolated: tuple[str, ...]
) -> None:
    options = (*counted(tmp_path), *isolated, "--approve", "asker")
    server = start(*options, revision=STATELESS, capabilities=FORMS)

    def named(name: str) -> dict[str, Any]:
        return {"action": "accept", "content": {"name": name}}

    approve = server.call("asker")
    assert is_question(approve) and counts(tmp_path) == 0
    one = retried(server, approve, ACCEPT, "asker")
    assert list(one["inputRequests"]) == ["one"] and counts(tmp_path) == 1
    assert is_question(retried(server, approve, ACCEPT, "asker"))
    two = retried(server, one, named("Ada"), "asker")
    assert list(two["inputRequests"]) == ["two"] and counts(tmp_path) == 2
    assert is_question(retried(server, one, named("Ada"), "asker"))
    answers = {"two": named("Bob")}
    ids = [begun(server, two, "asker", {}, answers) for _ in range(8)]
    ends = [server.result(id) for id in ids]
    assert [said(end) for end in ends if end["resultType"] == "complete"] == ["Ada Bob"]
    assert sum(map(is_question, ends)) == 7 and counts(tmp_path) == 3
    # who replays and approves again gets that one run, with what was answered before
    anew = retried(server, two, named("Bob"), "asker")
    assert said(retried(server, anew, ACCEPT, "asker")) == "Ada Bob" and counts(tmp_path) == 4


def test_a_tool_that_asks_in_a_task_group_keeps_its_approval(start: Start, tmp_path: Path) -> None:
    server = start(*counted(tmp_path), "--approve", "*", revision=STATELESS, capabilities=FORMS)
    one = retried(server, server.call("group_asker"), ACCEPT, "group_asker")
    assert list(one["inputRequests"]) == ["one"]
    done = retried(server, one, {"action": "accept", "content": {"name": "Ada"}}, "group_asker")
    assert said(done) == "Ada" and counts(tmp_path) == 2


def test_an_approval_is_its_principals_alone(tmp_path: Path) -> None:
    async def body(held: Inside) -> None:
        async def call(user: str, **params: Any) -> Any:
            prefix = "io.modelcontextprotocol/"
            meta = {prefix + "protocolVersion": STATELESS, prefix + "clientCapabilities": FORMS}
            message = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {**params, "_meta": meta}}
            told = {"mcp_protocol_version": STATELESS, "mcp_method": "tools/call", "mcp_name": params["name"]}
            return await held.ask("POST", message, **told, x_user=user).json()

        held.app.host.server().policy.rules = Rules(approve=parse_rules(["change"]))
        decisions: list[str] = []
        run = tools_method.run_tool

        async def noted(server: Any, call: Any, *rest: Any) -> Any:
            try:
                return await run(server, call, *rest)
            finally:
                decisions.append(call.decision)

        tools_method.run_tool = noted  # type: ignore[assignment]
        try:
            first = (await call("ada", name="change"))["result"]
            retry = {
                "name": "change",
                "requestState": first["requestState"],
                "inputResponses": dict.fromkeys(first["inputRequests"], ACCEPT),
            }
            assert (await call("bob", **retry))["error"]["code"] == -32602
            assert said((await call("ada", **retry))["result"]) == "changed"
            assert is_question((await call("ada", **retry))["result"])
            held.app.host.server().policy.rules = Rules(deny=parse_rules(["u-" + "0" * 40 + "=change,scope:x=echo"]))
            assert said((await call("ada", name="change"))["result"]) == "changed"
            denied = (await call("ada", name="echo", arguments={"text": "x"}))["result"]
            assert denied["isError"] and "scope:x=echo" in said(denied)
        finally:
            tools_method.run_tool = run
        assert decisions == ["asked", "approved", "asked", "allowed", "denied"]

    async def bounded() -> None:
        async with inside(tmp_path) as held:
            await asyncio.wait_for(body(held), PATIENCE)

    asyncio.run(bounded())


# -- calls that become tasks


def test_a_call_is_approved_before_it_becomes_a_task(probe: Start, tmp_path: Path) -> None:
    server = probe("--approve", "job", revision=STATELESS, capabilities=KNOWS)
    file = tmp_path / "go"
    first = server.call("job", {"file": str(file)})
    assert is_question(first)
    made = retried(server, first, ACCEPT, "job", arguments={"file": str(file)})
    assert made["resultType"] == "task"
    assert is_question(retried(server, first, ACCEPT, "job", arguments={"file": str(file)}))
    file.touch()
    assert text(ended(server, made["taskId"])) == "task: True"
    assert (tmp_path / "go.runs").read_text() == "run\n"


def test_a_task_that_asks_goes_on_with_its_approval(probe: Start) -> None:
    server = probe("--approve", "asks_later", revision=STATELESS, capabilities=KNOWS)
    made = retried(server, server.call("asks_later"), ACCEPT, "asks_later")
    id = made["taskId"]
    for name in ("Ada", "Bob"):
        asked = until(server, id, "input_required")
        answers = {key: {"action": "accept", "content": {"name": name}} for key in asked["inputRequests"]}
        server.request("tasks/update", {"taskId": id, "inputResponses": answers})
    assert text(ended(server, id)) == "Ada Bob"


def test_work_that_is_done_again_after_a_crash_is_asked_for_as_a_task(probe: Start, tmp_path: Path) -> None:
    file = tmp_path / "go"
    one = probe(revision=STATELESS, capabilities=KNOWS)
    id = created(one, "job", file=str(file))
    one.kill()
    other = probe("--approve", "job", revision=STATELESS, capabilities=KNOWS)
    asked = until(other, id, "input_required")
    ((key, request),) = asked["inputRequests"].items()
    assert request["params"]["message"].startswith("Run job (of the plugin deferring)")
    file.touch()
    other.request("tasks/update", {"taskId": id, "inputResponses": {key: {"action": "decline"}}})
    done = ended(other, id)
    assert done["result"]["isError"] and "declined" in said(done["result"])
    assert get(other, id)["status"] == "completed"
    assert (tmp_path / "go.runs").read_text() == "run\n"  # of the server that died


# -- rules


def test_a_denied_tool_is_refused_by_name_and_not_listed(connect: Start, tmp_path: Path) -> None:
    deny = "BackgroundBash,Bash(rm *),scope:tools:web,plugin:probe"
    server = connect("--deny", deny, "--allow", "*", revision="2025-11-25")
    assert "--deny BackgroundBash" in server.error("BackgroundBash", RUN)
    told = server.error("Bash", {"command": "true && rm -rf x"})
    assert "--deny Bash(rm *)" in told and "don't spell it another way" in told
    assert "--deny scope:tools:web" in server.error("WebSearch", {"query": "x"})
    assert "--deny plugin:probe" in server.error("echo", {"text": "x"})
    assert server.text("Bash", RUN) == "done\n"
    names = {tool["name"] for tool in server.request("tools/list")["tools"]}
    assert {"Bash", "KillBgTask", "job"} <= names
    assert not names & {"BackgroundBash", "WebSearch", "ReadDocs", "echo"}
    assert runs(tmp_path) == 1


@pytest.mark.parametrize("revision", ["2025-11-25", STATELESS])
def test_a_denied_tools_resources_are_refused_too(start: Start, revision: str) -> None:
    server = start("--deny", "ReadBgOutput", "--approve", "PlanMode", revision=revision, capabilities=FORMS)
    id = server.call("BackgroundBash", {"command": "echo secret"})["structuredContent"]["task_id"]
    refusals = {
        f"bg://{id}/output": "--deny ReadBgOutput",
        f"BG://{id}/output": "--deny ReadBgOutput",
        "plan://current": "--approve PlanMode",
    }
    asking = ["resources/read"] if revision == STATELESS else ["resources/read", "resources/subscribe"]
    for method in asking:
        for uri, told in refusals.items():
            with pytest.raises(Refusal) as caught:
                server.request(method, {"uri": uri})
            assert (caught.value.code in (-32600, -32602, -32002)) and "secret" not in str(caught.value)
            assert told in caught.value.message or uri.startswith("BG")
    schemes = {resource["uri"].partition(":")[0] for resource in server.request("resources/list")["resources"]}
    assert not schemes & {"bg", "plan"} and {"task", "callback"} <= schemes
    assert server.request("resources/read", {"uri": "task://list"})["contents"]


def test_allow_exempts_from_approval_and_deny_from_allow(start: Start, tmp_path: Path) -> None:
    options = ("--approve", "Bash", "--allow", "Bash(echo *)", "--deny", "Bash(echo secret*)")
    server = start(*options, capabilities=FORMS, answer=lambda *_: {"action": "decline"})
    assert server.text("Bash", {"command": "echo hello"}) == "hello\n"
    assert "declined" in server.error("Bash", {"command": "echo hello; echo run >> runs"})
    assert "declined" in server.error("Bash", {"command": "echo hello\necho run >> runs"})
    assert "--deny" in server.error("Bash", {"command": "echo secret"})
    assert runs(tmp_path) == 0


def test_the_plan_comes_first(start: Start) -> None:
    server = start("--approve", "*Bash", capabilities=FORMS, answer=lambda *_: ACCEPT)
    server.text("PlanMode", {"action": "enter", "goal": "think"})
    assert "a plan is active" in server.error("BackgroundBash", {"command": "true"})
    assert not server.notes("elicitation/create")


def test_a_read_only_command_takes_an_approval_too(start: Start, tmp_path: Path) -> None:
    server = start("--approve", "Bash", capabilities=FORMS, answer=lambda *_: ACCEPT)
    server.text("PlanMode", {"action": "enter", "goal": "think"})
    assert "while a plan is active" in server.text("Bash", RUN)
    assert server.notes("elicitation/create")
    assert runs(tmp_path) == 0


@pytest.mark.parametrize(("tool", "told"), [("BackgroundBash", "a plan is active"), ("Bash", "while a plan is active")])
def test_a_plan_that_begins_during_the_question_holds_too(start: Start, tmp_path: Path, tool: str, told: str) -> None:
    def answer(*_: Any) -> Any:
        server.begin("tools/call", {"name": "PlanMode", "arguments": {"action": "enter", "goal": "think"}})
        threading.Event().wait(0.5)
        return ACCEPT

    server = start("--approve", "*Bash", capabilities=FORMS, answer=answer)
    result = server.call(tool, {"command": RUN["command"]})
    assert told in said(result)
    assert server.notes("elicitation/create")
    assert runs(tmp_path) == 0


def test_rules_may_come_from_the_environment(start: Start) -> None:
    server = start(env={"TOOLGATE_DENY": "Bash(git push *:main)", "TOOLGATE_APPROVE": "scope:tools:shell"})
    assert "--deny Bash(git push *:main)" in server.error("Bash", {"command": "git push origin a:main"})
    assert "--approve scope:tools:shell" in server.error("Bash", {"command": "git pull"})


def test_a_rule_may_be_about_one_person(tmp_path: Path) -> None:
    from toolgate.server.base.principals.principal import derive_subject
    from toolgate.server.state.rows import grants as grant_rows
    from toolgate.server.state.rows import people as people_rows
    from toolgate.server.state.rows.people import BUILT_IN
    from toolgate.server.state.sqlite.store import SqliteStore

    def put(work: Callable[[Any], None]) -> None:
        async def done() -> None:
            store = SqliteStore(tmp_path / "state")
            await store.transact(work)
            store.close()

        asyncio.run(done())

    def know(issuer: str, known_as: str, name: str) -> str:
        row = {"issuer": issuer, "known_as": known_as, "name": name, "seen_at": 1e9}
        subject = derive_subject(issuer, known_as)
        put(lambda connection: grant_rows.save_person(connection, subject, **row))
        return subject

    (tmp_path / "state").mkdir()
    put(lambda connection: people_rows.add_account(connection, name="ada", subject="5f5f", password="", made_at=1e9))
    deny = "account:ada=echo,github:17=plain,subject:robot=change,scope:tools:shell=idle"
    ways = ("--login", "password", "--login", "github", "--allow-users", "github:17")
    own = {"TOOLGATE_GITHUB_ID": "id", "TOOLGATE_GITHUB_SECRET": "secret"}
    with signed_site(tmp_path, "--deny", deny, *ways, env=own) as signed:

        def refused(subject: str, tool: str, *scopes: str, **arguments: Any) -> bool:
            token = signed.token(subject, "one", scopes) if scopes else signed.token(subject, "one")
            _, _, answer = asked_by(signed, token, "tools/call", {"name": tool, "arguments": arguments})
            if answer["result"]["isError"]:
                assert "--deny" in said(answer["result"])
            return bool(answer["result"]["isError"])

        ada, bob = know(BUILT_IN, "5f5f", "ada"), know(BUILT_IN, "6a6a", "bob")
        octo, fake = know("https://github.com", "17", "octo"), know("https://other.example", "17", "ada")
        assert [refused(who, "echo", text="x") for who in (ada, bob, octo, fake, "robot")] == [True] + 4 * [False]
        assert [refused(who, "plain", word="x") for who in (ada, octo, fake)] == [False, True, False]
        assert [refused(who, "change") for who in (ada, "robot")] == [False, True]
        assert [refused(ada, "idle", "tools:workflow", more) for more in ("tools:web", "tools:shell")] == [False, True]


# -- what the person sees


@pytest.mark.parametrize(
    ("given", "seen"),
    [
        ("a\nb\r\t\x1b[2K\x00\x7f", r'"a\nb\r\t\u001b[2K\u0000\u007f"'),
        ("\u202egnp.sh", r'"\u202egnp.sh"'),
        ("a\u200bb\u2060\ufeff", r'"a\u200bb\u2060\ufeff"'),
        ("a\u00a0b\u3000\u2028", r'"a\u00a0b\u3000\u2028"'),
        ("\u3164\u115f\u2800\ufe0f\u034f", r'"\u3164\u115f\u2800\ufe0f\u034f"'),
        ("\U000e0041x", r'"\udb40\udc41x"'),
        ("\ud800", r'"\ud800"'),
        ('say "hi" \\u202e', r'"say \"hi\" \\u202e"'),
        ("grüße 世界 हिन्दी 🎉", '"grüße 世界 हिन्दी 🎉"'),
        ("e" + "\u0301" * 4, '"e\u0301\u0301' + r'\u0301\u0301"'),
        (5, "5"),
        ({"a": ["\u200b", None, 1.5]}, r'{"a": ["\u200b", null, 1.5]}'),
    ],
)
def test_what_can_not_be_seen_is_shown_as_an_escape(given: Any, seen: str) -> None:
    assert display.format_arguments({"x": given}) == f"x: {seen}"
    if not isinstance(given, (dict, int)):
        assert json.loads(seen) == given  # and as nothing else


def test_a_name_can_not_look_like_another_line() -> None:
    assert display.format_arguments({'x: 1\ny"': 1}).count("\n") == 0


def test_what_is_left_out_is_counted() -> None:
    given = {"command": "a" * 5_000 + "\nrm -rf ~\n" + "b" * 5_000, "more": "c" * 5_000, "z": {"deep": ["d" * 9_000]}}
    told = display.format_arguments({**given, **{f"n{number}": "e" * 4_000 for number in range(20)}})
    lines = told.splitlines()
    assert lines[0] == 'command: "' + "a" * 2_000 + '"'
    assert lines[1].strip() == "… 6,010 characters are NOT SHOWN here …"
    assert lines[2].strip() == '"' + "b" * 2_000 + '"'
    hidden = re.fullmatch(r"… and (\d+) more arguments that are NOT SHOWN", lines[-1])
    assert hidden is not None and int(hidden[1]) + sum(": " in line for line in lines) == 23
    assert len(told) < 2 * display.MAX_ALL


def test_blanks_do_not_push_anything_out_of_sight() -> None:
    told = display.format_arguments({"command": "ls" + " " * 3_000 + "; rm -rf ~", "x": ["a" + " " * 9, "b"]})
    assert told == 'command: "ls" … 3,000 spaces … "; rm -rf ~"\nx: ["a" … 9 spaces … "", "b"]'
    assert display.format_arguments({"x": '" … 9 spaces … "'}) == r'x: "\" … 9 spaces … \""'


def test_a_text_can_not_pretend_that_something_is_left_out() -> None:
    told = display.format_arguments({"command": 'x"\n  … 9 characters are NOT SHOWN here …\n  "y'})
    assert len(told.splitlines()) == 1
