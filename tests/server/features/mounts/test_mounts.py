"""A mounted server of each era, in front of a client of each revision: nothing is lost on the way, and questions reach
whoever is to answer them."""

import json
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.clients import raw_task_client
from tests.clients.raw_client import COMMAND, REVISIONS, STATELESS, Refusal, Server, children, eventually
from tests.server.features.mounts.far_server import FORM, NAMES, ODD_RESULT
from tests.server.features.mounts.mounted import (
    ANSWERS,
    CAPABILITIES,
    PROGRAM,
    answer,
    call_through,
    command_mount,
    far_site,
    url_mount,
    wait_listed,
    write_config,
)
from toolgate.server.cli import main

ERAS = ("legacy", "modern", "both")
QUESTIONS = {"ask": "elicitation/create", "sample": "sampling/createMessage", "roots": "roots/list"}
Start = Callable[..., Server]


@pytest.fixture
def mounted(start: Start, tmp_path: Path) -> Callable[..., Server]:
    """Start a server over stdio with these mounts."""

    def begin(*tables: str, **how: Any) -> Server:
        given = {"capabilities": CAPABILITIES, "answer": answer, **how}
        return start(*write_config(tmp_path, *tables), **given)

    return begin


def each_era(test: Any) -> Any:
    """Run a test with a mount of each era; `make test` runs each test with the next one."""
    return pytest.mark.rotated(1)(pytest.mark.parametrize("era", ["legacy", "modern"])(test))


@pytest.fixture(params=["command", "url"])
def carried(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Callable[[str], str]]:
    """Yield what makes the table of a mount of an era, by a command or a URL."""
    sites: list[Any] = []

    def make(era: str) -> str:
        if request.param == "command":
            return command_mount(era)
        manager = far_site(tmp_path, era)
        sites.append(manager)
        return url_mount(manager.__enter__().url)

    yield make
    for manager in sites:
        manager.__exit__(None, None, None)


@pytest.mark.pairs
@pytest.mark.parametrize("era", ERAS)
@pytest.mark.parametrize("revision", REVISIONS)
def test_a_whole_conversation(
    mounted: Callable[..., Server], carried: Callable[[str], str], revision: str, era: str
) -> None:
    server = mounted(carried(era), revision=revision)
    tools = wait_listed(server)
    has_elicitation = revision >= "2025-06-18"
    assert {f"far__{name}" for name in NAMES} <= set(tools)
    check_lists(server, tools)
    echo = json.loads(server.text("far__echo", {"n": "7", "new": 1.0}))
    assert echo["arguments"] == {"n": "7", "new": 1.0}  # not made a number
    check_odd(server)
    with pytest.raises(Refusal) as caught:
        server.call("far__error")
    assert (caught.value.code, caught.value.message) == (-31999, "as the mount says it")
    assert caught.value.data == {"why": "data"}
    assert server.text("far__progress", progressToken="mine") == "done"
    steps = [note for note in server.notes("notifications/progress") if note["progressToken"] == "mine"]
    assert [note["progress"] for note in steps] == [1, 2]
    for tool, method in QUESTIONS.items():
        if has_elicitation or method != "elicitation/create":
            said = call_through(server, f"far__{tool}")["content"][0]["text"]
            assert json.loads(said) == ANSWERS[method], tool
    first, second = (int(server.text("far__count")) for _ in range(2))
    assert second == first + 1  # one conversation, and one request a call


def check_lists(server: Server, tools: dict[str, Any]) -> None:
    """Each item is as the mounted server lists it, but for its name."""
    listed = tools["far__echo"]
    assert listed.pop("_meta") == {"far/x": 2**63, "toolgate/original": "echo"}
    assert listed == {
        "name": "far__echo",
        "title": "The tool echo",
        "description": "does echo",
        "inputSchema": {"type": "object", "properties": {"n": {"type": "integer", "default": 1}}},
        "annotations": {"readOnlyHint": True, "future": 1.0},
        "icons": [{"src": "data:,"}],
        "zoo": None,
    }
    prompts = {prompt["name"]: prompt for prompt in server.request("prompts/list")["prompts"]}
    assert prompts["far__hello"]["unknown"] == 1.0
    said = server.request("prompts/get", {"name": "far__hello", "arguments": {"who": "Ada"}})["messages"]
    assert said == [{"role": "user", "content": {"type": "text", "text": "hello Ada"}}]
    resources = {resource["uri"]: resource for resource in server.request("resources/list")["resources"]}
    assert resources["far://one"] == {"uri": "far://one", "name": "one", "size": 3}
    templates = server.request("resources/templates/list")["resourceTemplates"]
    assert {"uriTemplate": "far://item/{id}", "name": "item"} in templates
    for uri in ("far://one", "far://item/7"):
        assert server.request("resources/read", {"uri": uri})["contents"] == [{"uri": uri, "text": uri, "odd": 1.0}]
    for ref, far in (
        ({"type": "ref/prompt", "name": "far__hello"}, {"type": "ref/prompt", "name": "hello"}),
        ({"type": "ref/resource", "uri": "far://item/{id}"}, {"type": "ref/resource", "uri": "far://item/{id}"}),
    ):
        params = {"ref": ref, "argument": {"name": "who", "value": "A"}}
        values = server.request("completion/complete", params)["completion"]["values"]
        assert (json.loads(values[0]), values[1]) == (far, "A")


def check_odd(server: Server) -> None:
    result = server.call("far__odd")
    if server.revision == STATELESS:
        assert result.pop("resultType") == "complete"
        assert result.pop("_meta")["io.modelcontextprotocol/serverInfo"]["name"] == "toolgate"
    assert list(result) == list(json.loads(ODD_RESULT))
    assert json.dumps(result) == json.dumps(json.loads(ODD_RESULT))


@pytest.mark.pairs
@pytest.mark.parametrize("revision", ["2025-11-25", STATELESS])
@pytest.mark.parametrize("era", ["legacy", "modern"])
def test_a_mount_is_told_what_this_client_can_and_never_more(
    mounted: Callable[..., Server], revision: str, era: str
) -> None:
    server = mounted(command_mount(era), revision=revision, capabilities={"roots": {}}, answer=answer)
    names = set(wait_listed(server))
    assert "far__roots" in names
    assert not {"far__ask", "far__sample"} & names
    assert "unknown tool" in _refusal(server, "far__ask")


def _refusal(server: Server, tool: str) -> str:
    with pytest.raises(Refusal) as caught:
        server.call(tool)
    return caught.value.message


@each_era
def test_a_question_of_a_parked_call_is_answered_once_and_by_whom_it_was_asked(
    mounted: Callable[..., Server], era: str
) -> None:
    server = mounted(command_mount(era), revision=STATELESS)
    wait_listed(server)
    params = {"name": "far__ask", "arguments": {}}
    asked = server.request("tools/call", params)
    (key,) = asked["inputRequests"]
    assert asked["inputRequests"][key]["params"]["requestedSchema"] == FORM
    retried = {**params, "inputResponses": {key: ANSWERS["elicitation/create"]}, "requestState": asked["requestState"]}
    with pytest.raises(Refusal):  # other arguments: not this call
        server.request("tools/call", {**retried, "arguments": {"n": 2}})
    with pytest.raises(Refusal):
        server.request("tools/call", {**retried, "requestState": asked["requestState"][:-4] + "AAAA"})
    result = server.request("tools/call", retried)
    assert json.loads(result["content"][0]["text"]) == ANSWERS["elicitation/create"]
    if era == "legacy":  # what was asked is over; it is not called again
        calls = server.text("far__count")
        again = server.request("tools/call", retried)
        assert again["isError"] and again["content"][0]["text"].startswith("QUESTION_EXPIRED: ")
        assert int(server.text("far__count")) == int(calls) + 1


def test_an_empty_result_of_a_parked_call_is_a_result(
    mounted: Callable[..., Server], monkeypatch: pytest.MonkeyPatch
) -> None:
    server = mounted(command_mount("legacy"), revision=STATELESS)
    wait_listed(server)
    monkeypatch.setattr(server, "_fault", lambda message: None)  # no revision allows an empty result of a call
    result = call_through(server, "far__ask", {"empty": 1})
    assert set(result) == {"resultType", "_meta"}
    assert server.text("far__count") == "2"


def test_a_mount_that_is_called_one_at_a_time_waits_for_a_parked_call(mounted: Callable[..., Server]) -> None:
    server = mounted(command_mount("legacy", "far", 'ask = "one"', 'timeout = "2s"'), revision=STATELESS)
    wait_listed(server)
    params = {"name": "far__ask", "arguments": {}}
    asked = server.request("tools/call", params)
    assert "one at a time" in server.error("far__count")
    following = server.begin("tools/call", {"name": "far__count", "arguments": {}})
    responses = {key: answer(each["method"], {}) for key, each in asked["inputRequests"].items()}
    retried = {**params, "inputResponses": responses, "requestState": asked["requestState"]}
    assert server.request("tools/call", retried)["content"]
    assert server.result(following)["content"][0]["text"] == "2"
    assert server.text("far__count") == "3"


@each_era
def test_a_client_that_declares_and_never_answers_meets_a_deadline(start: Start, tmp_path: Path, era: str) -> None:
    options = (*write_config(tmp_path, command_mount(era)), "--hold", "2")
    server = start(*options, capabilities=CAPABILITIES, revision="2025-11-25", answer=lambda _method, _params: None)
    wait_listed(server)
    result = server.call("far__ask")
    if era == "legacy":  # the mounted server is told, and answers as it likes
        assert "no answer within" in json.loads(result["content"][0]["text"])["message"]
    else:
        assert result["isError"] and "no answer within" in result["content"][0]["text"]
    assert server.text("far__count") == "2"  # the next call works


@each_era
def test_a_long_call_becomes_a_task_of_ours_and_asks_in_it(mounted: Callable[..., Server], era: str) -> None:
    known = {**CAPABILITIES, **raw_task_client.KNOWS}
    server = mounted(command_mount(era), revision=STATELESS, capabilities=known, env={"TOOLGATE_TASK_AFTER": "0.5"})
    wait_listed(server)
    plain = raw_task_client.ended(server, raw_task_client.created(server, "far__later", seconds=3))
    assert raw_task_client.text(plain) == "it took a while"
    id = raw_task_client.created(server, "far__later", seconds=3, ask=1)
    asked = raw_task_client.until(server, id, "input_required")
    responses = {key: ANSWERS[each["method"]] for key, each in asked["inputRequests"].items()}
    server.request("tasks/update", {"taskId": id, "inputResponses": responses})
    assert json.loads(raw_task_client.text(raw_task_client.ended(server, id))) == ANSWERS["elicitation/create"]
    assert server.text("far__count") == ("3" if era == "legacy" else "4")  # a round of the stateless era is a call


@pytest.mark.brief(STATELESS)
@pytest.mark.parametrize("revision", ["2025-06-18", STATELESS])
def test_a_tool_that_runs_as_a_task_only_is_called_as_others(mounted: Callable[..., Server], revision: str) -> None:
    server = mounted(command_mount("legacy", "far", 'env = { FAR_TASKS = "1" }'), revision=revision)
    assert "taskSupport" not in json.dumps(wait_listed(server)["far__long"])
    result = call_through(server, "far__long", progressToken="mine")
    assert (result["content"], result["_meta"]["far/x"]) == ([{"type": "text", "text": "done"}], 1.0)
    assert "related-task" not in json.dumps(result)
    steps = [note for note in server.notes("notifications/progress") if note["progressToken"] == "mine"]
    assert [note["progress"] for note in steps] == [1]
    asked = call_through(server, "far__long", {"ask": 1})
    assert json.loads(asked["content"][0]["text"]) == ANSWERS["elicitation/create"]
    id = server.begin("tools/call", {"name": "far__long", "arguments": {"forever": 1}})
    assert eventually(lambda: server.text("far__tasks_begun") == "3")
    server.notify("notifications/cancelled", {"requestId": id})
    assert eventually(lambda: len(json.loads(server.text("far__tasks_ended"))) == 1)


@pytest.mark.pairs
@pytest.mark.parametrize("revision", ["2025-11-25", STATELESS])
@pytest.mark.parametrize("era", ["legacy", "modern"])
def test_a_cancelled_call_is_cancelled_at_the_mount(mounted: Callable[..., Server], revision: str, era: str) -> None:
    server = mounted(command_mount(era), revision=revision)
    wait_listed(server)
    id = server.begin("tools/call", {"name": "far__slow", "arguments": {}})
    assert server.text("far__count") == "2"  # the slow one began before
    server.notify("notifications/cancelled", {"requestId": id})
    assert server.text("far__count") == "3"


@each_era
def test_a_list_that_changes_is_announced_and_served(mounted: Callable[..., Server], era: str) -> None:
    server = mounted(command_mount(era))
    wait_listed(server)
    assert server.text("far__grow") == "grown"
    server.wait(lambda said: said.get("method") == "notifications/tools/list_changed")
    assert "far__grown_0" in {tool["name"] for tool in server.request("tools/list")["tools"]}
    assert server.error("far__grown_0") == "no tool grown_0"


def test_a_list_is_fetched_again_when_it_holds_no_longer(mounted: Callable[..., Server]) -> None:
    server = mounted(command_mount("modern", "far", 'env = { FAR_TTL = "100" }'))
    wait_listed(server)
    server.text("far__grow")  # it tells nobody
    assert eventually(lambda: "far__grown_0" in {tool["name"] for tool in server.request("tools/list")["tools"]})


def test_the_instructions_of_a_mount_come_with_the_first_answer(mounted: Callable[..., Server]) -> None:
    server = mounted(command_mount("both"))
    assert server.hello["instructions"].endswith("# far\nAsk far.")


@pytest.mark.parametrize(
    ("tool", "text"),
    [
        ("exit", "MAY_HAVE_RUN: it exited with code 3; its last words: the last words; the call may have run"),
        ("deep", "MAY_HAVE_RUN: it sent something that is no JSON-RPC message; the call may have run"),
        ("large", "MAY_HAVE_RUN: it sent a line of more than 32 MiB; the call may have run"),
    ],
)
def test_a_mount_that_fails_in_a_call_is_an_error_and_the_next_call_works(
    mounted: Callable[..., Server], tool: str, text: str
) -> None:
    server = mounted(command_mount("legacy"), command_mount("modern", "other"))
    wait_listed(server, "far", "other")
    assert server.text("other__count") == "1"
    before = server.text("far__pid")
    assert server.error(f"far__{tool}") == text
    assert (server.text("far__pid") != before) == (tool != "deep")
    assert server.text("other__count") == "2"  # its conversation is the same


@pytest.mark.parametrize("tool", ["rubbish", "flood", "wrong_id"])
def test_what_is_no_answer_is_left_out(mounted: Callable[..., Server], tool: str) -> None:
    server = mounted(command_mount("legacy"))
    wait_listed(server)
    server.text(f"far__{tool}", progressToken=1)
    assert server.text("far__count")


def test_a_program_has_its_own_environment_and_little_else(mounted: Callable[..., Server]) -> None:
    server = mounted(
        command_mount("both", "far", 'env = { KEY = "${env:FAR_KEY}" }'), env={"FAR_KEY": "k", "OTHER": "o"}
    )
    wait_listed(server)
    found = json.loads(server.text("far__env"))
    assert found["KEY"] == "k"
    assert not {"OTHER", "FAR_KEY", "TOOLGATE_STATE"} & set(found)


def test_no_variable_is_repeated_of_the_last_words_of_a_program(mounted: Callable[..., Server]) -> None:
    server = mounted(command_mount("legacy", "far", 'env = { KEY = "the-key-of-far" }'))
    wait_listed(server)
    assert "its last words: the last words …; the call may have run" in server.error("far__exit")
    assert "the-key-of-far" not in server.log()


@each_era
def test_a_call_is_not_sent_again_where_the_answer_to_its_question_is_refused(
    mounted: Callable[..., Server], tmp_path: Path, era: str
) -> None:
    with far_site(tmp_path, era) as site:

        def forget_and_answer(method: str, params: dict[str, Any]) -> Any:
            site.ask("/forget")
            return answer(method, params)

        server = mounted(url_mount(site.url), answer=forget_and_answer)
        wait_listed(server)
        if era == "modern":  # it has no sessions to forget
            assert server.text("far__ask")
            return
        assert server.error("far__ask").startswith("MAY_HAVE_RUN: ")
        assert server.text("far__count") == "1"  # in the new session: the question was not asked again


def test_other_calls_of_a_forgotten_session_may_have_run(mounted: Callable[..., Server], tmp_path: Path) -> None:
    with far_site(tmp_path, "legacy") as site:
        server = mounted(url_mount(site.url))
        wait_listed(server)
        before = int(site.ask("/requests"))
        slow = server.begin("tools/call", {"name": "far__slow", "arguments": {}})
        assert eventually(lambda: int(site.ask("/requests")) > before)
        assert server.text("far__count") == "2"
        site.ask("/forget")
        assert server.text("far__count") == "1"  # taken up in a new session
        said = server.result(slow)
        assert said["isError"] and said["content"][0]["text"].startswith("MAY_HAVE_RUN: ")


def test_nothing_of_a_mount_lives_when_the_server_ends(mounted: Callable[..., Server]) -> None:
    server = mounted(command_mount("legacy"))
    wait_listed(server)
    pid = int(server.text("far__pid"))
    assert pid in children(server.process.pid)
    server.close()
    assert eventually(lambda: not Path(f"/proc/{pid}").exists())


def test_nothing_of_a_mount_lives_when_the_server_is_killed(mounted: Callable[..., Server]) -> None:
    server = mounted(command_mount("legacy"))
    wait_listed(server)
    pid = int(server.text("far__pid"))
    server.kill()
    assert eventually(lambda: not Path(f"/proc/{pid}").exists())


def test_known_lists_are_served_without_starting_anything(mounted: Callable[..., Server], tmp_path: Path) -> None:
    state = tmp_path / "kept"
    first = mounted(command_mount("legacy"), state=state)
    wait_listed(first)
    assert eventually(lambda: bool(list((state / "cache" / "mounts").glob("far.json"))))
    first.close()
    again = mounted(command_mount("legacy"), state=state)
    assert "far__echo" in {tool["name"] for tool in again.request("tools/list")["tools"]}
    assert not any("far_server" in Path(f"/proc/{pid}/cmdline").read_text() for pid in children(again.process.pid))


def test_patterns_choose_what_is_served(mounted: Callable[..., Server]) -> None:
    server = mounted(command_mount("legacy", "far", 'tools = ["echo", "c*"]', 'prefix = "far__"'))
    names = set(wait_listed(server))
    assert {"far__echo", "far__count", "Bash"} <= names
    assert "far__odd" not in names


@each_era
def test_a_url_that_forgets_its_sessions_is_taken_up_again(
    mounted: Callable[..., Server], tmp_path: Path, era: str
) -> None:
    with far_site(tmp_path, era) as site:
        server = mounted(url_mount(site.url))
        wait_listed(server)
        server.text("far__echo")
        before = int(site.ask("/requests"))
        server.text("far__echo")
        assert int(site.ask("/requests")) == before + 1  # one request a call
        site.ask("/forget")
        assert server.text("far__echo")
        assert server.text("far__echo")


def test_of_many_mounts_the_good_ones_are_listed_soon(mounted: Callable[..., Server], tmp_path: Path) -> None:
    with far_site(tmp_path, "both") as site:
        server = mounted(
            command_mount("legacy", "good"),
            url_mount(site.url, "far"),
            '[mounts.gone]\ncommand = "/no/such/program"\n',
            '[mounts.mute]\ncommand = "sleep"\nargs = ["600"]\n',
            url_mount("http://127.0.0.1:1/mcp", "refused"),
            url_mount(f"{site.base}/nothing", "empty"),
        )
        wait_listed(server, "good", "far")
        for code in ("NOT_STARTED", "CONNECT_FAILED"):
            assert eventually(lambda code=code: code in server.log())


def test_a_change_of_the_file_is_live_and_touches_no_other_mount(
    mounted: Callable[..., Server], tmp_path: Path
) -> None:
    server = mounted(command_mount("legacy", "kept"), command_mount("legacy", "gone"))
    wait_listed(server, "kept", "gone")
    pid, gone = server.text("kept__pid"), server.text("gone__pid")

    def names() -> set[str]:
        return {
            tool["name"].partition("__")[0] for tool in server.request("tools/list")["tools"] if "__" in tool["name"]
        }

    assert names() == {"kept", "gone"}
    write_config(tmp_path, command_mount("legacy", "kept"), command_mount("modern", "new"))
    assert eventually(lambda: names() == {"kept", "new"})
    assert server.text("kept__pid") == pid
    assert eventually(lambda: not Path(f"/proc/{gone}").exists())
    write_config(tmp_path, "this is no TOML")
    assert eventually(lambda: "the mounts stay as they are" in server.log())
    assert names() == {"kept", "new"}


def test_the_first_mount_of_all_is_served_without_a_restart(start: Start, tmp_path: Path) -> None:
    server = start(*write_config(tmp_path, 'name = "mine"'), capabilities=CAPABILITIES, answer=answer)
    assert not [tool for tool in server.request("tools/list")["tools"] if "__" in tool["name"]]
    write_config(tmp_path, "name = mine")  # no TOML
    assert eventually(lambda: "it is not followed" in server.log())
    write_config(tmp_path, command_mount("legacy"))
    server.wait(lambda said: said.get("method") == "notifications/tools/list_changed")
    wait_listed(server)
    pid = int(server.text("far__pid"))
    write_config(tmp_path, command_mount("modern", "new"))
    wait_listed(server, "new")
    assert eventually(lambda: not Path(f"/proc/{pid}").exists())
    assert server.close() == 0
    assert not children(server.process.pid)


def test_a_mount_that_comes_up_later_is_announced(mounted: Callable[..., Server], tmp_path: Path) -> None:
    script = tmp_path / "later.py"
    server = mounted(f'[mounts.later]\ncommand = "{sys.executable}"\nargs = ["{script}", "legacy"]\n')
    assert not [tool for tool in server.request("tools/list")["tools"] if tool["name"].startswith("later")]
    script.write_text(PROGRAM.read_text())
    server.wait(lambda said: said.get("method") == "notifications/tools/list_changed")
    assert server.text("later__count") == "1"


def test_a_uri_that_two_mounts_claim_leads_to_each_and_never_to_the_wrong_one(mounted: Callable[..., Server]) -> None:
    server = mounted(command_mount("legacy", "one"), command_mount("modern", "two"))
    wait_listed(server, "one", "two")
    listed = {resource["uri"]: resource for resource in server.request("resources/list")["resources"]}
    assert {"one+far://one", "two+far://one"} <= set(listed)
    assert "far://one" not in listed
    assert listed["two+far://one"]["_meta"] == {"toolgate/original": "far://one"}
    templates = {each["uriTemplate"] for each in server.request("resources/templates/list")["resourceTemplates"]}
    assert {"one+far://item/{id}", "two+far://item/{id}"} <= templates
    for uri in ("one+far://one", "two+far://item/7"):
        (contents,) = server.request("resources/read", {"uri": uri})["contents"]
        assert contents["text"] == uri.partition("+")[2]  # what the mount was asked for
    with pytest.raises(Refusal, match=re.escape("several servers have it, as one+far://one and two+far://one")):
        server.request("resources/read", {"uri": "far://one"})


@each_era
def test_a_subscriber_hears_of_changes_also_after_a_restart(mounted: Callable[..., Server], era: str) -> None:
    server = mounted(command_mount(era, "far", 'per = "all"'))
    wait_listed(server)
    server.request("resources/subscribe", {"uri": "far://item/7"})
    told = [0]

    def hears() -> bool:
        server.text("far__touch")
        notes = len(server.notes("notifications/resources/updated"))
        is_new, told[0] = notes > told[0], notes
        return is_new

    assert eventually(hears)
    assert server.error("far__exit").startswith("MAY_HAVE_RUN")
    assert eventually(hears)
    server.request("resources/unsubscribe", {"uri": "far://item/7"})
    if era == "legacy":
        assert eventually(lambda: server.call("far__touch")["content"][0]["text"] == "")


@pytest.mark.brief(STATELESS)
@pytest.mark.parametrize("revision", ["2025-11-25", STATELESS])
def test_a_mount_of_the_server_itself_is_refused(mounted: Callable[..., Server], tmp_path: Path, revision: str) -> None:
    words = f'"--config", "{tmp_path / "mounts.toml"}", "--state", "{tmp_path / "state"}"'
    table = f'[mounts.mirror]\ncommand = "{COMMAND}"\nargs = [{words}]\n'
    server = mounted(table, command_mount("legacy"), revision=revision)
    wait_listed(server)
    assert eventually(lambda: "mount mirror: LOOP: this server is mounted on itself" in server.log())
    assert eventually(lambda: len([pid for pid in children(server.process.pid) if _runs(pid, "toolgate.server")]) == 0)


def _runs(pid: int, program: str) -> bool:
    try:
        return program in Path(f"/proc/{pid}/cmdline").read_text()
    except OSError:
        return False


def test_a_mount_that_lists_our_uris_stands_in_for_none_of_them(mounted: Callable[..., Server], tmp_path: Path) -> None:
    (tmp_path / "work").mkdir()
    file = tmp_path / "work" / "a.txt"
    file.write_text("ours")
    skill = "skill://toolgate-tools/SKILL.md"
    uris = (file.as_uri(), "plan://current", "task://7", skill)
    server = mounted(command_mount("legacy", "far", f'env = {{ FAR_URIS = "{" ".join(uris)}" }}'))
    wait_listed(server)
    listed = {each["uri"]: each for each in server.request("resources/list")["resources"]}
    for uri in uris:
        assert listed[f"far+{uri}"]["_meta"] == {"toolgate/original": uri}
        (contents,) = server.request("resources/read", {"uri": f"far+{uri}"})["contents"]
        assert (contents["uri"], contents["text"]) == (f"far+{uri}", uri)
    assert server.request("resources/read", {"uri": uris[0]})["contents"][0]["text"] == "ours"
    assert "Working with these tools" in server.request("resources/read", {"uri": skill})["contents"][0]["text"]
    with pytest.raises(Refusal, match="resource not found"):
        server.request("resources/read", {"uri": "task://7"})


def test_a_uri_in_two_spellings_costs_no_list(mounted: Callable[..., Server]) -> None:
    tables = (
        command_mount("legacy", name, f'env = {{ FAR_URIS = "{uris}" }}')
        for name, uris in (("far", "HTTP://a/x http://a/x FILE:///a"), ("other", "Http://a/x"))
    )
    server = mounted(*tables)
    wait_listed(server, "far", "other")
    listed = [each["uri"] for each in server.request("resources/list")["resources"]]
    assert [uri for uri in listed if uri.lower().endswith(("://a/x", ":///a"))] == [
        "far+HTTP://a/x",
        "far+FILE:///a",
        "other+Http://a/x",
    ]
    for uri in ("far+http://a/x", "other+http://a/x"):
        assert server.request("resources/read", {"uri": uri})["contents"]


def test_bare_names_give_way_to_ours(mounted: Callable[..., Server]) -> None:
    server = mounted(command_mount("legacy", "far", 'prefix = ""'))
    assert eventually(lambda: "echo" in {tool["name"] for tool in server.request("tools/list")["tools"]})


def test_commands_on_the_machine_see_how_mounts_are_and_restart_one(
    mounted: Callable[..., Server], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    server = mounted(command_mount("legacy"), command_mount("legacy", "kept"), '[mounts.gone]\ncommand = "/no"\n')
    wait_listed(server, "far", "kept")
    pid, kept = server.text("far__pid"), server.text("kept__pid")
    options = ("--config", str(tmp_path / "mounts.toml"), "--state", str(server.state))

    def list_mounts() -> str:
        assert main.run(("mount", "list", *options)) == 0
        return capsys.readouterr().out

    assert eventually(lambda: "NOT_STARTED" in list_mounts())
    assert "far   running" in list_mounts()
    assert "gone since 2" in list_mounts()
    assert main.run(("mount", "list", "--json", *options)) == 0
    assert json.loads(capsys.readouterr().out)["tools"]["far"]["far__echo"] == "echo"
    assert "is its tool" not in list_mounts()  # all have the prefix and their own names
    write_config(tmp_path, *(command_mount("legacy", name, 'prefix = ""') for name in ("far", "kept")))
    assert eventually(lambda: re.search(r"^far: echo_[0-9a-f]{6} is its tool 'echo'$", list_mounts(), re.MULTILINE))
    write_config(tmp_path, command_mount("legacy"), command_mount("legacy", "kept"))
    wait_listed(server, "far", "kept")
    pid, kept = server.text("far__pid"), server.text("kept__pid")
    assert eventually(lambda: main.run(("mount", "restart", "far", *options)) == 0)
    assert server.text("far__pid") != pid
    assert server.text("kept__pid") == kept
    assert main.run(("mount", "restart", "nobody", *options)) == 2
    server.close()
    assert main.run(("mount", "restart", "far", *options)) == 1
