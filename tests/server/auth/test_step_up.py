"""Scopes over real HTTP: a caller without one is told which, and the call is not run."""

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.clients.raw_http_client import events
from tests.server.auth.minted_tokens import Signed, asked, challenge, request, session, signed_site
from toolgate.server.base.principals.scopes import PLUGINS, READ, SERVED, SHELL, WEB, WORKFLOW

WELL_KNOWN = "/.well-known/oauth-protected-resource"


@pytest.fixture(scope="module")
def signed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Signed]:
    with signed_site(tmp_path_factory.mktemp("signed")) as held:
        yield held


# -- scopes


@pytest.mark.parametrize(
    ("granted", "tool", "wanted"),
    [
        ([READ, WEB, WORKFLOW, PLUGINS], "Bash", SHELL),
        ([READ], "WebSearch", WEB),
        ([SHELL], "WebSearch", WEB),
        ([SHELL], "TaskManager", WORKFLOW),
        ([SHELL, READ, WEB, WORKFLOW], "echo", PLUGINS),
        ([], "ListBgTasks", READ),
        ([], "NoSuchTool", READ),
    ],
)
def test_pr_11_a_call_without_its_scope_is_403_on_every_era_and_transport(
    signed: Signed, granted: list[str], tool: str, wanted: str
) -> None:
    token = signed.token("ada", "client", granted)
    id = session(signed, token)
    call = {"name": tool, "arguments": {"command": "echo no", "text": "no"}}
    era, _, _ = asked(signed, token, "tools/call", call)
    old, _, _ = signed.site.ask(
        "POST", "/mcp", request("tools/call", call), authorization=f"Bearer {token}", mcp_session_id=id
    )
    with contextlib.closing(signed.site.connect()) as connection:
        connection.request("GET", "/sse", headers={"Authorization": f"Bearer {token}"})
        endpoint = next(events(connection.getresponse()))["data"]
        sse, _, _ = signed.site.ask("POST", endpoint, request("tools/call", call), authorization=f"Bearer {token}")
    for response, about in ((era, "/mcp"), (old, "/mcp"), (sse, "/sse")):
        assert response.status == 403
        told = challenge(response)
        assert (told["error"], told["scope"]) == ("insufficient_scope", wanted)
        assert told["resource_metadata"] == f"{signed.issuer}{WELL_KNOWN}{about}"


def test_pr_12_a_shell_may_read(signed: Signed) -> None:
    token = signed.token("ada", "client", [SHELL])
    for method, params in (("tools/list", {}), ("tools/call", {"name": "ListBgTasks", "arguments": {}})):
        assert asked(signed, token, method, params)[0].status == 200


def test_mcp_11_a_batch_hides_no_privileged_call(signed: Signed, tmp_path: Path) -> None:
    token = signed.token("ada", "client", [READ])
    id = session(signed, token, "2025-03-26")
    proof = tmp_path / "ran"
    batch = [
        request("tools/list", id=1),
        request("tools/call", {"name": "Bash", "arguments": {"command": f"touch {proof}"}}, id=2),
        request("tools/call", {"name": "WebSearch", "arguments": {"query": "x"}}, id=3),
    ]
    response, _, _ = signed.site.ask("POST", "/mcp", batch, authorization=f"Bearer {token}", mcp_session_id=id)
    assert (response.status, challenge(response)["scope"]) == (403, f"{READ} {WEB} {SHELL}")
    allowed, _, said = signed.site.ask("POST", "/mcp", [batch[0]], authorization=f"Bearer {token}", mcp_session_id=id)
    assert (allowed.status, len(said)) == (200, 1)
    assert not proof.exists()


def test_mcp_10_headers_that_say_something_else_than_the_body_open_nothing(signed: Signed, tmp_path: Path) -> None:
    token = signed.token("ada", "client", [READ])
    proof = tmp_path / "ran"
    call = {"name": "Bash", "arguments": {"command": f"touch {proof}"}}
    for told in (
        {"mcp_name": "ListBgTasks"},
        {"mcp_method": "tools/list"},
        {"mcp_method": "ping", "mcp_name": "x"},
        {"mcp_name": "=?base64?QmFzaA==?="},
    ):
        assert asked(signed, token, "tools/call", call, **told)[0].status == 403
    listed = {"name": "ListBgTasks", "arguments": {}}
    assert asked(signed, token, "tools/call", listed, mcp_name="Bash")[0].status == 400
    assert not proof.exists()


def test_notifications_and_answers_can_t_start_a_call(signed: Signed, tmp_path: Path) -> None:
    token = signed.token("ada", "client", [READ])
    id = session(signed, token)
    proof = tmp_path / "ran"
    params = {"name": "Bash", "arguments": {"command": f"touch {proof}"}}
    for message in (
        {"jsonrpc": "2.0", "method": "tools/call", "params": params},
        {"jsonrpc": "2.0", "id": None, "method": "tools/call", "params": params},
        {"jsonrpc": "2.0", "id": 1, "result": {}, "params": params},
        {"jsonrpc": "1.0", "id": 1, "method": "tools/call", "params": params},
    ):
        signed.site.ask("POST", "/mcp", message, authorization=f"Bearer {token}", mcp_session_id=id)
    twice = json.dumps(request("tools/call", params)).replace('"name": "Bash"', '"name": "ListBgTasks", "name": "Bash"')
    response, _, _ = signed.site.ask("POST", "/mcp", twice.encode(), authorization=f"Bearer {token}", mcp_session_id=id)
    assert response.status == 403
    assert not proof.exists()


@pytest.mark.parametrize(
    ("method", "params", "wanted"),
    [
        ("resources/read", {"uri": "bg://1/output"}, SHELL),
        ("resources/read", {"uri": "callback://inbox"}, WORKFLOW),
        ("resources/read", {"uri": "bacio:///quote"}, READ),
        ("prompts/get", {"name": "greeting", "arguments": {"name": "x"}}, PLUGINS),
        (
            "completion/complete",
            {"ref": {"type": "ref/prompt", "name": "greeting"}, "argument": {"name": "name", "value": ""}},
            PLUGINS,
        ),
        ("subscriptions/listen", {"notifications": {"resourceSubscriptions": ["bg://1"]}}, SHELL),
        ("subscriptions/listen", {"notifications": {"toolsListChanged": True}}, READ),
        ("tools/list", {}, READ),
        ("resources/templates/list", {}, READ),
    ],
)
def test_pr_11_every_method_asks_for_its_scope(signed: Signed, method: str, params: Any, wanted: str) -> None:
    others = [scope for scope in SERVED if scope != wanted and not (wanted == READ and scope == SHELL)]
    response, _, _ = asked(signed, signed.token("ada", "client", others), method, params)
    assert response.status == 403
    assert challenge(response)["scope"] == wanted


def test_a_subscription_in_a_session_asks_for_the_scope_of_its_resource(signed: Signed) -> None:
    token = signed.token("ada", "client", [READ])
    id = session(signed, token)
    for method in ("resources/subscribe", "resources/unsubscribe"):
        response, _, _ = signed.site.ask(
            "POST",
            "/mcp",
            request(method, {"uri": "bg://1"}),
            authorization=f"Bearer {token}",
            mcp_session_id=id,
        )
        assert (response.status, challenge(response)["scope"]) == (403, SHELL)


def test_with_no_scope_at_all_one_may_say_hello_and_no_more(signed: Signed) -> None:
    token = signed.token("ada", "client", [])
    assert asked(signed, token, "server/discover")[0].status == 200
    assert session(signed, token)
    assert asked(signed, token, "tools/list")[0].status == 403


# -- hosts with habits of their own


def test_every_tool_says_how_to_sign_in_for_it(signed: Signed) -> None:
    _, _, said = asked(signed, signed.token(), "tools/list")
    tools = {tool["name"]: tool for tool in said["result"]["tools"]}
    for name, scope in (("Bash", SHELL), ("WebSearch", WEB), ("echo", PLUGINS)):
        schemes = [{"type": "oauth2", "scopes": [scope]}]
        assert tools[name]["securitySchemes"] == tools[name]["_meta"]["securitySchemes"] == schemes


def test_a_host_that_reads_challenges_in_results_finds_one_there(signed: Signed, tmp_path: Path) -> None:
    token = signed.token("ada", "client", [READ])
    proof = tmp_path / "ran"
    call = {"name": "Bash", "arguments": {"command": f"touch {proof}"}, "_meta": {"openai/userAgent": "ChatGPT"}}
    response, _, said = asked(signed, token, "tools/call", call)
    assert (response.status, said["result"]["isError"]) == (200, True)
    [told] = said["result"]["_meta"]["mcp/www_authenticate"]
    assert 'error="insufficient_scope"' in told and f'scope="{SHELL}"' in told and "resource_metadata=" in told
    listed, _, _ = asked(signed, signed.token("a", "c", []), "tools/list", {"_meta": {"openai/userAgent": "ChatGPT"}})
    assert listed.status == 403
    with contextlib.closing(signed.site.connect()) as connection:
        connection.request("GET", "/sse", headers={"Authorization": f"Bearer {token}"})
        stream = events(connection.getresponse())
        endpoint = next(stream)["data"]
        sent, _, _ = signed.site.ask("POST", endpoint, request("tools/call", call), authorization=f"Bearer {token}")
        assert sent.status == 202
        assert json.loads(next(stream)["data"])["result"]["_meta"]["mcp/www_authenticate"]
    assert not proof.exists()
