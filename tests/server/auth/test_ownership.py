"""Ownership: two people, and one person through two clients, on one server with real tokens."""

import asyncio
import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest

from tests.clients.raw_client import STATELESS, eventually, processes_with
from tests.clients.raw_http_client import POSTED, events, site
from tests.conftest import PROBE
from tests.server.auth.minted_tokens import ENVELOPE, Signed, asked, request, session, signed_site
from toolgate.server.auth.tokens.access_tokens import OWN_ISSUER
from toolgate.server.base.principals.principal import Principal
from toolgate.server.methods import subscriptions
from toolgate.server.methods.server import Server
from toolgate.server.protocol.errors import InvalidRequest
from toolgate.server.protocol.notifications import Notifications, OpenSubscription
from toolgate.server.protocol.session import Channel
from toolgate.transports.http.sessions.local_store import LocalSessionStore
from toolgate.transports.http.sessions.session import MAX_RIGHTS
from toolgate.transports.http.sessions.sessions import MAX_PER_OWNER, Sessions

BOTH = "text/event-stream, application/json"
PROGRESS = "notifications/progress"
HOSTILE = "../../ada\n<script>"


@pytest.fixture(scope="module")
def signed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Signed]:
    """A server with a workspace for each principal."""
    with signed_site(tmp_path_factory.mktemp("owned"), workspace=False) as held:
        yield held


def others(signed: Signed) -> dict[str, str]:
    """Return tokens other than ada's through client one: another person, ada through another client, and both."""
    return {
        "another person": signed.token("bob", "one"),
        "another client": signed.token("ada", "two"),
        "both": signed.token("bob", "two"),
    }


def called(signed: Signed, token: str, tool: str, **arguments: Any) -> dict[str, Any]:
    response, _, said = asked(signed, token, "tools/call", {"name": tool, "arguments": arguments})
    assert response.status == 200
    result: dict[str, Any] = said["result"]
    return result


def text(result: dict[str, Any]) -> str:
    return "\n".join(block["text"] for block in result["content"] if block["type"] == "text")


@contextlib.contextmanager
def opened(signed: Signed, token: str, method: str, path: str, body: Any = None, **headers: str) -> Iterator[Any]:
    """Yield a response with a stream to read as it arrives."""
    told = {"Authorization": f"Bearer {token}", "Accept": BOTH}
    told |= {name.replace("_", "-"): value for name, value in headers.items()}
    with contextlib.closing(signed.site.connect()) as connection:
        data = None if body is None else json.dumps(body).encode()
        connection.request(method, path, data, {**(POSTED if data else {}), **told})
        yield connection.getresponse()


def messages(response: Any) -> Iterator[dict[str, Any]]:
    return (json.loads(event["data"]) for event in events(response) if event.get("data"))


# -- sessions


def test_pr_14_mcp_05_a_session_is_refused_to_other_owners_on_any_method(signed: Signed) -> None:
    ada = signed.token("ada", "one")
    id = session(signed, ada)
    for who, token in others(signed).items():
        bearer = {"authorization": f"Bearer {token}", "mcp_session_id": id}
        for method, body in (
            ("POST", request("tools/list")),
            ("POST", {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 1}}),
            ("POST", {"jsonrpc": "2.0", "id": 1, "result": {}}),
            ("GET", None),
            ("DELETE", None),
        ):
            response, _, _ = signed.site.ask(method, "/mcp", body, accept=BOTH, **bearer)
            assert response.status == 404, (who, method)
    mine, _, _ = signed.site.ask(
        "POST", "/mcp", request("tools/list"), authorization=f"Bearer {ada}", mcp_session_id=id
    )
    assert mine.status == 200


def test_a_session_goes_on_with_a_new_token_of_its_owner(signed: Signed) -> None:
    id = session(signed, signed.token("ada", "one"))
    fresh = signed.bearer("ada", "one", jti="another")
    response, _, _ = signed.site.ask("POST", "/mcp", request("tools/list"), authorization=fresh, mcp_session_id=id)
    assert response.status == 200


def test_mcp_05_a_stream_is_resumed_by_its_owner_only(signed: Signed) -> None:
    ada = signed.token("ada", "one")
    id = session(signed, ada)
    call = request("tools/call", {"name": "wait", "arguments": {"seconds": 0.3}, "_meta": {"progressToken": "p"}}, 7)
    with opened(signed, ada, "POST", "/mcp", call, mcp_session_id=id) as response:
        event = next(event for event in events(response) if PROGRESS in event.get("data", ""))
    for token in others(signed).values():
        told = {"accept": "text/event-stream", "last_event_id": event["id"], "authorization": f"Bearer {token}"}
        assert signed.site.ask("GET", "/mcp", mcp_session_id=id, **told)[0].status == 404
        own = session(signed, token)
        assert signed.site.ask("GET", "/mcp", mcp_session_id=own, **told)[0].status in (204, 400)
    with opened(signed, ada, "GET", "/mcp", mcp_session_id=id, last_event_id=event["id"]) as response:
        assert "result" in next(message for message in messages(response) if message.get("id") == 7)


def test_pr_15_only_the_owner_posts_into_a_stream_of_http_sse(signed: Signed) -> None:
    ada = signed.token("ada", "one")
    with opened(signed, ada, "GET", "/sse") as stream:
        heard = events(stream)
        endpoint = next(heard)["data"]
        for token in others(signed).values():
            response, _, _ = signed.site.ask("POST", endpoint, request("ping"), authorization=f"Bearer {token}")
            assert response.status == 404
        assert signed.site.ask("POST", endpoint, request("ping"))[0].status == 401
        mine, _, _ = signed.site.ask("POST", endpoint, request("ping", id="mine"), authorization=f"Bearer {ada}")
        assert mine.status == 202
        assert json.loads(next(heard)["data"])["id"] == "mine"


def test_a_session_of_one_transport_is_none_of_the_other(signed: Signed) -> None:
    ada = signed.token("ada", "one")
    id = session(signed, ada)
    bearer = {"authorization": f"Bearer {ada}"}
    assert signed.site.ask("POST", f"/messages?session_id={id}", request("ping"), **bearer)[0].status == 404


# -- the stateless era


def test_mcp_08_sealed_state_is_for_its_owner_alone(signed: Signed) -> None:
    meta = {**ENVELOPE, "io.modelcontextprotocol/clientCapabilities": {"elicitation": {}}}
    call = {"name": "ask", "arguments": {}, "_meta": meta}
    ada = signed.token("ada", "one")
    first = asked(signed, ada, "tools/call", call)[2]["result"]
    assert first["resultType"] == "input_required"
    answers = {"question-1": {"action": "accept", "content": {"name": "Eve"}}}
    again = {**call, "requestState": first["requestState"], "inputResponses": answers}
    for token in others(signed).values():
        _, _, said = asked(signed, token, "tools/call", again)
        assert said["error"]["code"] == -32602
    assert asked(signed, ada, "tools/call", again)[2]["result"]["resultType"] == "input_required"


def test_mcp_05_a_subscription_hears_of_its_own_principals_resources_and_only_its_owner_ends_it(
    signed: Signed,
) -> None:
    ada, bob = signed.token("ada", "one"), signed.token("bob", "one")
    told = {"mcp_protocol_version": STATELESS, "mcp_method": "subscriptions/listen"}
    wanted = {"notifications": {"resourceSubscriptions": ["many://1"]}, "_meta": ENVELOPE}
    listen = request("subscriptions/listen", wanted, "same")
    with opened(signed, ada, "POST", "/mcp", listen, **told) as stream:
        heard = messages(stream)
        assert next(heard)["method"] == "notifications/subscriptions/acknowledged"
        cancel = {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": "same"}}
        for token in others(signed).values():  # her own other client too
            signed.site.ask("POST", "/mcp", cancel, authorization=f"Bearer {token}", mcp_protocol_version=STATELESS)
            with opened(signed, token, "POST", "/mcp", listen, **told) as other:
                assert next(messages(other))["method"] == "notifications/subscriptions/acknowledged"
        with opened(signed, bob, "POST", "/mcp", listen, **told) as other:
            others_news = messages(other)
            next(others_news)
            called(signed, bob, "touch", uri="many://1")  # news for bob, and for nobody else
            assert next(others_news)["method"] == "notifications/resources/updated"
            called(signed, ada, "touch", uri="many://1")
            news = next(heard)
            assert news["method"] == "notifications/resources/updated"
            called(signed, bob, "write_note", name="one", text="x")
        called(signed, ada, "touch", uri="many://1")
        assert next(heard) == news  # one for each touch of ada's, none for bob's


# -- what belongs to a person


def test_a_workspace_is_a_persons_whatever_the_client(signed: Signed) -> None:
    called(signed, signed.token("ada", "one"), "Bash", command="echo mine > note")
    assert "mine" in text(called(signed, signed.token("ada", "two"), "Bash", command="cat note"))
    assert "mine" not in text(called(signed, signed.token("bob", "one"), "Bash", command="cat note"))
    here, there = (
        text(called(signed, signed.token(who, "one"), "Bash", command="pwd")).split()[0] for who in ("ada", "bob")
    )
    assert here != there


def test_a_folder_is_not_named_by_what_came_from_outside(signed: Signed) -> None:
    for subject in (HOSTILE, "../../../../tmp/x", "/etc", "local", ".", "a" * 500, "x\x00y"):
        place = text(called(signed, signed.token(subject, "one"), "Bash", command="pwd")).split()[0]
        assert place == str(signed.site.state / "workspaces" / Principal(OWN_ISSUER, subject, "").name)
    for folder in ("workspaces", "spool"):
        names = {path.name for path in (signed.site.state / folder).iterdir() if path.name != ".users"}
        assert all(name.startswith("u-") and len(name) == 42 for name in names), names
    assert "script" not in signed.site.log()


def test_tasks_are_a_persons_whatever_the_client(signed: Signed) -> None:
    made = called(signed, signed.token("ada", "one"), "TaskManager", action="create", query="paint the fence")
    assert not made["isError"], made
    assert "paint the fence" in text(called(signed, signed.token("ada", "two"), "TaskManager", action="list", query=""))
    assert "paint the fence" not in text(
        called(signed, signed.token("bob", "one"), "TaskManager", action="list", query="")
    )


@pytest.mark.alone  # the other server has the state in the same folder
def test_a_persons_data_stays_theirs_under_another_public_url(signed: Signed, tmp_path: Path) -> None:
    mine = signed.token("p-ada", "one")
    called(signed, mine, "TaskManager", action="create", query="paint the door")
    called(signed, mine, "Bash", command="echo blue > colour")
    state = signed.site.state
    with site(tmp_path, *PROBE, "--auth", "oauth", "--state", str(state), workspace=False) as listening:
        assert listening.url != signed.site.url
        listening.state = state
        there = Signed(listening)
        token = there.token("p-ada", "one", jti="there", noted=False)
        assert "paint the door" in text(called(there, token, "TaskManager", action="list", query=""))
        assert "blue" in text(called(there, token, "Bash", command="cat colour"))


def test_background_tasks_are_a_persons_whatever_the_client(signed: Signed) -> None:
    ada, again, bob = signed.token("ada", "one"), signed.token("ada", "two"), signed.token("bob", "one")
    begun = called(signed, ada, "BackgroundBash", command="echo from-ada; sleep 61.357")
    task = begun["structuredContent"]["task_id"]
    assert "61.357" in text(called(signed, again, "ListBgTasks"))
    assert "61.357" not in text(called(signed, bob, "ListBgTasks"))
    for tool in ("ReadBgOutput", "KillBgTask"):
        assert called(signed, bob, tool, task_id=task)["isError"] is True
    assert called(signed, again, "KillBgTask", task_id=task)["isError"] is False


def test_callbacks_and_their_news_are_a_persons_whatever_the_client(signed: Signed) -> None:
    ada, again, bob = signed.token("ada", "one"), signed.token("ada", "two"), signed.token("bob", "one")
    called(signed, ada, "SetCallback", action="set", message="turn the page", delay_seconds=3600)
    assert "turn the page" in text(called(signed, again, "SetCallback", action="list"))
    assert "turn the page" not in text(called(signed, bob, "SetCallback", action="list"))
    assert called(signed, bob, "SetCallback", action="cancel", callback_id=0)["isError"] is True
    called(signed, ada, "SetCallback", action="cancel")


def test_news_of_a_finished_command_reaches_its_principal_only(signed: Signed) -> None:
    ada, bob = signed.token("ada", "three"), signed.token("bob", "three")
    called(signed, ada, "BackgroundBash", command="sleep 0.31357")
    assert eventually(lambda: not processes_with("0.31357"))
    assert "Meanwhile" not in text(called(signed, bob, "echo", text="x"))
    assert eventually(lambda: "Meanwhile" in text(called(signed, ada, "echo", text="x")))  # it is told once
    assert "Meanwhile" not in text(called(signed, bob, "echo", text="x"))


# -- room for all


def test_one_owner_can_t_push_others_out(signed: Signed) -> None:
    bob, eve = signed.token("bob", "one"), signed.token("eve", "one")
    kept = session(signed, bob)
    opened_by_eve = [session(signed, eve) for _ in range(MAX_PER_OWNER + 3)]
    found = [
        signed.site.ask("POST", "/mcp", request("ping"), authorization=f"Bearer {eve}", mcp_session_id=id)[0].status
        for id in opened_by_eve
    ]
    assert found == [404] * 3 + [200] * MAX_PER_OWNER  # her own longest idle gave way
    mine, _, _ = signed.site.ask("POST", "/mcp", request("ping"), authorization=f"Bearer {bob}", mcp_session_id=kept)
    assert mine.status == 200


def test_an_owners_busy_sessions_do_not_give_way() -> None:
    ended: list[str] = []
    sessions = Sessions(lambda session: ended.append(session.key), LocalSessionStore(), per_owner=2)
    eve, bob = Principal("i", "eve", "c"), Principal("i", "bob", "c")

    async def scenario() -> None:
        first, second = sessions.open(eve), sessions.open(eve)
        assert first is not None and second is not None
        first.open_get_stream().attach(first)
        third = sessions.open(eve)
        assert third is not None and ended == [second.id]
        third.open_get_stream().attach(third)
        assert sessions.open(eve) is None
        assert sessions.open(bob) is not None
        sessions.close(first)
        assert sessions.open(eve) is not None
        sessions.close_all()
        assert len(sessions) == 0 and not sessions._of_owner

    asyncio.run(scenario())


def test_a_session_is_used_by_tokens_of_so_many_grants_and_ends_with_each() -> None:
    sessions = Sessions(lambda _session: None, LocalSessionStore())
    tokens = [Principal("i", "eve", "c", grant=f"grant-{number}") for number in range(MAX_RIGHTS + 1)]

    async def scenario() -> None:
        held = sessions.open(tokens[0])
        assert held is not None
        assert [sessions.find(held.id, token) is held for token in tokens] == [True] * MAX_RIGHTS + [False]
        assert sessions.find(held.id, tokens[0]) is held
        sessions.close_by_rights(["grant-8", ("eve", "c")])
        assert len(sessions) == 1
        sessions.close_by_rights(["grant-7"])
        assert len(sessions) == 0

    asyncio.run(scenario())


def test_without_signing_in_there_is_one_owner_and_no_such_ceiling(tmp_path: Path) -> None:
    with site(tmp_path) as listening:
        hello = request("initialize", {"protocolVersion": "2025-11-25", "capabilities": {}})
        ids = [listening.ask("POST", "/mcp", hello)[0].getheader("mcp-session-id") for _ in range(MAX_PER_OWNER + 1)]
        assert ids[0] is not None
        assert listening.ask("POST", "/mcp", request("ping"), mcp_session_id=ids[0])[0].status == 200
        _, _, said = listening.ask("POST", "/mcp", request("tools/list"), mcp_session_id=ids[0])
        assert "securitySchemes" not in str(said)  # only where somebody has to sign in
        assert listening.ask("GET", "/.well-known/oauth-protected-resource")[0].status == 404


@pytest.mark.alone  # each replica limits those open there
def test_one_owners_subscriptions_leave_room_for_others(signed: Signed) -> None:
    mallory, bob = signed.token("mallory", "one"), signed.token("bob", "one")
    listen = request("subscriptions/listen", {"notifications": {"toolsListChanged": True}, "_meta": ENVELOPE})
    told = {"mcp_protocol_version": STATELESS, "mcp_method": "subscriptions/listen"}
    with contextlib.ExitStack() as stack:
        for _ in range(MAX_PER_OWNER):
            heard = messages(stack.enter_context(opened(signed, mallory, "POST", "/mcp", listen, **told)))
            assert "error" not in next(heard)
        with opened(signed, mallory, "POST", "/mcp", listen, **told) as response:
            assert "too many" in json.loads(response.read())["error"]["message"]
        with opened(signed, bob, "POST", "/mcp", listen, **told) as response:
            assert next(messages(response))["method"] == "notifications/subscriptions/acknowledged"


def test_a_persons_sessions_are_limited_through_however_many_clients() -> None:
    ended: list[str] = []
    sessions = Sessions(
        lambda session: ended.append(session.key), LocalSessionStore(), per_owner=2, per_person=3, limit=5
    )
    bob = Principal("i", "bob", "c")

    def eve(client: int) -> Principal:
        return Principal("i", "eve", f"c{client}")

    async def scenario() -> None:
        kept = sessions.open(bob)
        opened = [sessions.open(eve(client)) for client in range(5)]
        assert kept is not None and all(opened)
        assert len(sessions) == 4 and kept.id not in ended  # the longest idle of her own gave way
        other = sessions.open(bob)
        third = sessions.open(Principal("i", "kim", "c"))  # all is taken: whoever has most gives way
        assert other is not None and third is not None and len(sessions) == 5
        assert sessions.find(kept.id, bob) is kept and sessions.find(other.id, bob) is other
        sessions.close_all()
        assert len(sessions) == 0 and not sessions._of_owner and not sessions._of_person

    asyncio.run(scenario())


def test_a_new_session_ends_no_session_of_a_smaller_owner() -> None:
    sessions = Sessions(lambda session: None, LocalSessionStore(), limit=3)
    bob, eve = Principal("i", "bob", "c"), Principal("i", "eve", "c")

    async def scenario() -> None:
        kept = sessions.open(bob)
        for _ in range(2):
            busy = sessions.open(eve)
            assert busy is not None
            busy.open_get_stream().attach(busy)
        assert kept is not None and sessions.open(eve) is None
        assert sessions.find(kept.id, bob) is kept
        sessions.close_all()

    asyncio.run(scenario())


def test_a_persons_subscriptions_leave_room_for_others_through_however_many_clients() -> None:
    class Held:
        def __init__(self) -> None:
            self.notifications = Notifications()

        def add(self, who: str, client: int, many: int) -> None:
            for _ in range(many):
                subscriptions._make_room(cast("Server", self), who, f"{who}-{client}")
                ended = asyncio.get_running_loop().create_future()
                none = frozenset[str]()
                made = OpenSubscription(1, cast("Channel", None), who, f"{who}-{client}", none, none, ended)
                self.notifications.subscriptions[made] = None

    async def scenario() -> None:
        held = Held()
        held.add("mallory", 0, subscriptions.MAX_OWNED)
        held.add("mallory", 1, subscriptions.MAX_OWNED)
        with pytest.raises(InvalidRequest):
            held.add("mallory", 2, 1)
        for number in range(subscriptions.MAX_LISTENERS // 100 - 2):
            held.add(f"u{number}", 0, 100)
        held.add("victim", 0, 1)
        opened = held.notifications.subscriptions
        assert [listener.principal for listener in opened if listener.end_signal.done()] == ["mallory"]

    asyncio.run(scenario())
