"""The table of scopes: what each message needs, and what implies it."""

from functools import cache
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from toolgate.server.app import builtin_tools
from toolgate.server.app.app import App
from toolgate.server.base.principals import scopes
from toolgate.server.base.principals.scopes import (
    PLUGINS,
    READ,
    SERVED,
    SHELL,
    WEB,
    WORKFLOW,
    format_scopes,
    has_scopes,
    list_served_scopes,
)
from toolgate.server.config import load
from toolgate.server.protocol.dispatcher import Dispatcher, Method
from toolgate.server.protocol.errors import ParseError
from toolgate.server.protocol.messages import MalformedMessage, Notification, Request, Response, decode
from toolgate.tools import prompt, resource, tool
from toolgate.tools.api.registry import Registry


@tool(scope="weather:read")
def forecast() -> str:
    """A tool with its own scope."""
    return ""


@tool
def extra() -> str:
    """A plugin's tool without a scope."""
    return ""


@tool(scope='x", error="none')
def hostile() -> str:
    """A tool with an invalid scope."""
    return ""


@prompt()
def greeting(name: str) -> str:
    """A plugin's prompt."""
    return name


@prompt(scope=READ)
def open_prompt() -> str:
    """A prompt without a scope."""
    return ""


@resource("notes://{name}/text", scope=WORKFLOW)
def note(name: str) -> str:
    """A family of notes."""
    return name


@resource("notes://secret/{part}", scope=SHELL)
def secret(part: str) -> str:
    """Another family under the same scheme."""
    return part


@resource("bg://1/output", scope=READ)
def output() -> str:
    """A resource under a scheme with its own row."""
    return ""


REGISTRY = Registry(
    [*builtin_tools.TOOLS, *builtin_tools.RESOURCES, forecast, extra, greeting, open_prompt, note, secret, output]
)
BUILTIN = {
    "Bash": SHELL,
    "ReadImage": READ,
    "ReadDocs": WEB,
    "WebSearch": WEB,
    "TaskManager": WORKFLOW,
    "PlanMode": WORKFLOW,
    "AskUserQuestion": WORKFLOW,
    "InvokeSkill": WORKFLOW,
    "BackgroundBash": SHELL,
    "ReadBgOutput": READ,
    "ListBgTasks": READ,
    "KillBgTask": SHELL,
    "SetCallback": WORKFLOW,
}


@cache
def served() -> App:
    """Return an application that serves REGISTRY."""
    with TemporaryDirectory() as state:
        app = App(load.load({"state": state}, {"HOME": state}))
        app.host.store().close()
        app.host.server().registry = REGISTRY
        return app


def dispatcher() -> Dispatcher:
    return served().host.dispatcher()


def wants(method: str, **params: Any) -> set[str]:
    return set(dispatcher().scopes_of(Request(1, method, params)))


def test_every_tool_has_the_scope_of_the_contract() -> None:
    assert {one.name: one.scope for one in builtin_tools.TOOLS} == BUILTIN
    assert {name: wants("tools/call", name=name) for name in BUILTIN} == {name: {BUILTIN[name]} for name in BUILTIN}


def test_a_method_without_scopes_can_not_be_declared() -> None:
    with pytest.raises(TypeError, match="scopes"):
        Method(lambda call: {})  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]


def test_opening_a_conversation_needs_no_scope_and_listing_needs_to_read() -> None:
    for method in ("initialize", "ping", "server/discover", "logging/setLevel", "no/such"):
        assert wants(method) == set()
    for method in ("tools/list", "prompts/list", "resources/list", "resources/templates/list"):
        assert wants(method) == {READ}


def test_a_plugins_parts_go_by_their_own_scope() -> None:
    assert wants("tools/call", name="extra") == {PLUGINS}
    assert wants("tools/call", name="forecast") == {"weather:read"}
    assert wants("prompts/get", name="greeting") == {PLUGINS}
    assert wants("prompts/get", name="open_prompt") == {READ}


@pytest.mark.parametrize("name", ["nope", "", None, 7, ["Bash"], {"a": 1}, "bash"])
def test_to_ask_for_what_is_not_there_takes_what_listing_takes(name: object) -> None:
    assert wants("tools/call", name=name) == {READ}
    assert wants("prompts/get", name=name) == {READ}
    assert wants("resources/read", uri=name) == {READ}


@pytest.mark.parametrize("method", ["resources/read", "resources/subscribe", "resources/unsubscribe"])
@pytest.mark.parametrize(
    ("uri", "wanted"),
    [
        ("bg://7", {SHELL}),
        ("BG://7", {SHELL}),
        ("bg:7", {SHELL}),
        ("bg://1/output", {SHELL, READ}),
        ("callback://inbox", {WORKFLOW}),
        ("notes://one/text", {WORKFLOW}),
        ("notes://secret/text", {WORKFLOW, SHELL}),
        ("notes://secret/other", {SHELL}),
        ("test://nothing", {READ}),
    ],
)
def test_a_resource_goes_by_its_scheme_and_by_its_own_scope(method: str, uri: str, wanted: set[str]) -> None:
    found = wants(method, uri=uri)
    if uri == "notes://secret/text":  # two families match: the one that is read counts
        read = REGISTRY.resource(uri)
        assert read is not None and found == {read[0].scope}
    else:
        assert found == wanted


def test_a_subscription_needs_what_reading_all_of_it_needs() -> None:
    uris = ["bg://7", "notes://one/text"]
    assert wants("subscriptions/listen", notifications={"resourceSubscriptions": uris}) == {SHELL, WORKFLOW}
    both = {"toolsListChanged": True, "resourceSubscriptions": ["notes://one/text"]}
    assert wants("subscriptions/listen", notifications=both) == {READ, WORKFLOW}
    assert wants("subscriptions/listen", notifications={"toolsListChanged": False}) == set()
    assert wants("subscriptions/listen", notifications={"resourceSubscriptions": [7, None]}) == {READ}
    assert wants("subscriptions/listen", notifications=[]) == {READ}


def test_a_completion_needs_what_it_completes_for() -> None:
    assert wants("completion/complete", ref={"type": "ref/prompt", "name": "greeting"}) == {PLUGINS}
    assert wants("completion/complete", ref={"type": "ref/resource", "uri": "notes://{name}/text"}) == {WORKFLOW}
    assert SHELL in wants("completion/complete", ref={"type": "ref/resource", "uri": "notes://secret/{part}"})
    assert wants("completion/complete", ref={"type": "ref/prompt", "name": "nope"}) == {READ}
    assert wants("completion/complete", ref="nonsense") == {READ}


def test_who_has_all_needed_scopes_lacks_none_for_any_message() -> None:
    server = served().host.server()
    every = server.needed_scopes()
    assert server.needed_scopes() is every
    methods = dispatcher()._methods
    parts = [None, "nope", *(part.key for part in REGISTRY.parts)]
    for method in (*methods, "no/such"):
        for part in parts:
            named: dict[str, Any] = {"name": part, "uri": part, "taskId": f"t-1.{part}"}
            for kind in ("ref/prompt", "ref/resource"):
                named["ref"] = {"type": kind, "name": part, "uri": part}
                asked = {"resourceSubscriptions": [part], "taskIds": [named["taskId"]], "toolsListChanged": True}
                assert wants(method, **named, notifications=asked) <= every
    assert {"weather:read", READ, WORKFLOW} <= every
    try:
        server.registry = Registry([part for part in REGISTRY.parts if part.key != "forecast"])
        assert server.needed_scopes() == every - {"weather:read"}
    finally:
        server.registry = REGISTRY


def test_a_task_carries_the_scope_of_its_tool() -> None:
    for method in ("tasks/get", "tasks/update", "tasks/cancel"):
        assert wants(method, taskId="t-1.Bash") == {SHELL}
        assert wants(method, taskId="t-2.extra") == {PLUGINS}
        assert wants(method, taskId="t-3.nope") == wants(method, taskId="t-3") == {READ}
        assert wants(method, taskId=["t-1.Bash"]) == {READ}
    assert wants("subscriptions/listen", notifications={"taskIds": ["t-1.Bash", "t-2.extra"]}) == {SHELL, PLUGINS}


def test_mcp_11_a_batch_needs_what_any_of_it_needs() -> None:
    batch = decode(
        b'[{"jsonrpc":"2.0","id":1,"method":"tools/list"},{"jsonrpc":"2.0","id":2,"method":"tools/call",'
        b'"params":{"name":"Bash"}},{"jsonrpc":"2.0","id":3,"method":"tools/call","params":{"name":"WebSearch"}},'
        b'{"jsonrpc":"2.0","method":"tools/call","params":{"name":"extra"}},7]'
    )
    assert dispatcher().scopes_of(batch) == {READ, SHELL, WEB}


def test_notifications_and_answers_need_no_scope() -> None:
    others = (Notification("tools/call", {"name": "Bash"}), Response(1, {}), MalformedMessage(None, ParseError("no")))
    assert [dispatcher().scopes_of(other) for other in others] == [frozenset()] * 3


def test_pr_12_the_shell_scope_implies_reading_and_no_other_scope_implies_any() -> None:
    assert has_scopes(frozenset({SHELL}), frozenset({READ, SHELL}))
    assert not has_scopes(frozenset({READ, WEB, WORKFLOW, PLUGINS}), frozenset({SHELL}))
    for scope in (READ, WEB, WORKFLOW, PLUGINS):
        assert scopes.expand_scopes(frozenset({scope})) == {scope}
        assert not has_scopes(frozenset(), frozenset({scope}))
    assert has_scopes(None, frozenset(SERVED))
    assert has_scopes(frozenset(), frozenset())


def test_a_scope_is_covered_by_its_exact_name_only() -> None:
    for near in ("tools:shell ", "TOOLS:SHELL", "tools", "tools:*", "*", "tools:shellx", ""):
        assert not has_scopes(frozenset({near}), frozenset({SHELL}))


def test_served_is_what_something_here_needs() -> None:
    assert list_served_scopes(Registry(builtin_tools.TOOLS)) == (READ, WEB, WORKFLOW, SHELL)
    assert list_served_scopes(REGISTRY) == (READ, WEB, WORKFLOW, PLUGINS, SHELL, "weather:read")
    assert list_served_scopes(Registry([])) == (READ,)


def test_no_scope_breaks_out_of_a_header() -> None:
    assert list_served_scopes(Registry([hostile, extra])) == (READ, PLUGINS)
    assert format_scopes({SHELL, READ, 'x", error="none', "a\r\nb", "own:scope", ""}) == f"{READ} {SHELL} own:scope"


def test_every_scope_has_its_sentence_and_a_shell_is_called_a_shell() -> None:
    assert set(SERVED) == {READ, WEB, WORKFLOW, SHELL, PLUGINS}
    assert "shell" in scopes.SENTENCES[SHELL] and "any command" in scopes.SENTENCES[SHELL]


def test_the_sentence_about_a_shell_fits_the_sandbox_and_promises_no_more() -> None:
    def told(*how: Any, is_shared: bool = False) -> str:
        return scopes.describe_for_people(*how, is_shared=is_shared)[SHELL]

    assert told("none", "all") == scopes.SENTENCES[SHELL]
    private = told("bwrap", "public")
    assert private == told("bwrap", None) and told("uid", None) == told("uid", "none")
    assert "any shell command in a sandbox" in private and "your own workspace" in private
    assert "public internet" in private and "those of other people" in private
    shared = told("bwrap", "none", is_shared=True)
    assert "share" in shared and "of other people" not in shared and "no network" in shared
    assert "every local user" in told("uid", "all") and "every network" in told("uid", "all")


@pytest.mark.parametrize(
    ("given", "found"),
    [
        ("tools:read tools:web", {READ, WEB}),
        (["tools:read", "tools:web"], {READ, WEB}),
        (" tools:read  tools:web ", {READ, WEB}),
        (["tools:read tools:web"], set()),
        ("", set()),
        (None, set()),
        ({"tools:shell": True}, set()),
        ([7, None, "tools:read"], {READ}),
        ("tools:read\ttools:shell", set()),
    ],
)
def test_granted_scopes_are_read_from_words_or_lists(given: object, found: set[str]) -> None:
    assert scopes.parse_scopes(given) == found
