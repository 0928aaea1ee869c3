"""resources/list, resources/templates/list, resources/read and subscriptions, on every transport."""

import asyncio
import base64
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.clients.raw_client import PATIENCE, REVISIONS, STATELESS, WITH_SESSION, Refusal, Server, eventually
from tests.servers.http_in_process import Inside, inside
from tests.servers.line_counter import counted_lines
from toolgate.tools.api.registry import Registry
from toolgate.tools.api.resource import resource

pytestmark = pytest.mark.pairs

Start = Callable[..., Server]
UPDATED = "notifications/resources/updated"


def refused(server: Server, method: str, params: dict[str, Any]) -> Refusal:
    with pytest.raises(Refusal) as caught:
        server.request(method, params)
    return caught.value


def pages(server: Server, method: str, field: str) -> list[list[dict[str, Any]]]:
    """Return all pages of a list."""
    found, params = [], {}
    while True:
        answer = server.request(method, params)
        found.append(answer[field])
        if "nextCursor" not in answer:
            return found
        params = {"cursor": answer["nextCursor"]}


def resources(server: Server) -> dict[str, dict[str, Any]]:
    every = [each for page in pages(server, "resources/list", "resources") for each in page]
    found = {each["uri"]: each for each in every}
    assert len(found) == len(every)
    return found


def read(server: Server, uri: str) -> list[dict[str, Any]]:
    contents: list[dict[str, Any]] = server.request("resources/read", {"uri": uri})["contents"]
    return contents


# -- listing


def test_a_resource_is_listed_with_what_the_revision_knows(connect: Start) -> None:
    plain = {
        "uri": "test://text",
        "name": "words",
        "description": "Text that never changes.",
        "mimeType": "text/plain",
        "annotations": {"audience": ["user"], "priority": 0.5},
    }
    icons = [{"src": "https://example.com/icon.png", "mimeType": "image/png", "sizes": ["48x48"]}]
    titled = {**plain, "title": "Some text", "_meta": {"example.com/kept": 2}}
    told = {"2024-11-05": plain, "2025-03-26": plain, "2025-06-18": titled}
    for revision in REVISIONS:
        assert resources(connect(revision=revision))["test://text"] == told.get(revision, {**titled, "icons": icons})


def test_a_template_is_listed_as_one_and_what_it_lists_among_the_resources(connect: Start) -> None:
    server = connect(revision="2025-03-26")
    template = {"uriTemplate": "note://{name}", "name": "note", "description": "A note.", "mimeType": "text/plain"}
    assert template in server.request("resources/templates/list")["resourceTemplates"]
    held = resources(server)
    assert held["note://one"] == {"uri": "note://one", "name": "one", "description": "a note", "size": 9}
    assert "note://{name}" not in held


def test_a_listing_that_fails_costs_no_other(connect: Start) -> None:
    assert "note://two" in resources(connect())


@pytest.mark.parametrize("revision", REVISIONS)
def test_a_long_list_comes_in_pages_that_miss_nothing(connect: Start, revision: str) -> None:
    server = connect(revision=revision)
    found = pages(server, "resources/list", "resources")
    assert len(found) > 2
    assert all(len(page) == 250 for page in found[:-1])
    many = [each["uri"] for page in found for each in page if each["uri"].startswith("many://")]
    assert many == [f"many://{number:03}" for number in range(600)]


@pytest.mark.parametrize("cursor", ["", "x", "é", "WyJ0b29scyIsMSwiIl0=", 5, {}, "A" * 20_000])
def test_a_cursor_that_is_none_of_ours_is_invalid_params(connect: Start, cursor: Any) -> None:
    server = connect()
    for method in ("tools/list", "prompts/list", "resources/list", "resources/templates/list"):
        if (method, cursor) == ("tools/list", "WyJ0b29scyIsMSwiIl0="):
            continue  # that one is
        assert refused(server, method, {"cursor": cursor}).code == -32602


def test_lists_say_how_long_they_keep_on_the_stateless_revision(connect: Start) -> None:
    server = connect(revision=STATELESS)
    for method, kept in (("prompts/list", 60_000), ("resources/templates/list", 60_000), ("resources/list", 0)):
        answer = server.request(method)
        assert (answer["ttlMs"], answer["cacheScope"]) == (kept, "private")


def test_a_page_of_resources_costs_the_same_beside_any_number_of_others(tmp_path: Path) -> None:
    async def count_lines(here: Inside, count: int) -> int:
        def read() -> str:
            """A text."""
            return "text"

        def read_named(name: str) -> str:
            """Its name."""
            return name

        fixed = [resource(f"fixed://{number}")(read) for number in range(count)]
        templates = [resource(f"t{number}://{{name}}")(read_named) for number in range(2 * count)]
        here.app.host.server().swap_registry(Registry([*fixed, *templates]))
        first = await ask_for_page(here)
        with counted_lines() as count_of_page:
            assert await ask_for_page(here) == first
        assert len(first["resources"]) == 250 and "nextCursor" in first
        return count_of_page.lines

    async def body() -> None:
        async with inside(tmp_path) as here:
            few, many = await count_lines(here, 300), await count_lines(here, 3_000)
            assert many - few < 1_000

    async def ask_for_page(here: Inside) -> dict[str, Any]:
        meta = {"io.modelcontextprotocol/protocolVersion": STATELESS, "io.modelcontextprotocol/clientCapabilities": {}}
        message = {"jsonrpc": "2.0", "id": 1, "method": "resources/list", "params": {"_meta": meta}}
        answer = await here.ask("POST", message, mcp_protocol_version=STATELESS, mcp_method="resources/list").json()
        page: dict[str, Any] = answer["result"]
        return page

    asyncio.run(asyncio.wait_for(body(), PATIENCE))


# -- reading


@pytest.mark.parametrize("revision", REVISIONS)
def test_text_bytes_json_and_several_contents_are_read(connect: Start, revision: str) -> None:
    server = connect(revision=revision)
    assert read(server, "test://text") == [{"uri": "test://text", "mimeType": "text/plain", "text": "words"}]
    blob = base64.b64encode(b"\x89PNG").decode()
    assert read(server, "test://bytes") == [{"uri": "test://bytes", "mimeType": "image/png", "blob": blob}]
    answer = {"uri": "test://json", "mimeType": "application/json", "text": '{"answer":42}'}
    assert read(server, "test://json") == [answer]
    assert read(server, "test://several") == [
        {"uri": "test://several/a", "mimeType": "text/plain", "text": "a"},
        {"uri": "test://several/b", "blob": base64.b64encode(b"\0\1").decode()},
    ]
    assert read(server, "note://two") == [{"uri": "note://two", "mimeType": "text/plain", "text": "the second"}]


@pytest.mark.parametrize("revision", REVISIONS)
def test_a_resource_that_is_not_there_has_the_revisions_own_code(connect: Start, revision: str) -> None:
    server = connect(revision=revision)
    for path in ("three", "", "a/b", "..", "%2e%2e", "%00"):
        refusal = refused(server, "resources/read", {"uri": f"note://{path}"})
        assert refusal.code == (-32602 if revision == STATELESS else -32002)
        assert refusal.data == {"uri": f"note://{path}"}
    for uri in ("no://such", "x"):
        assert refused(server, "resources/read", {"uri": uri}).data == {"uri": uri}


@pytest.mark.parametrize("revision", REVISIONS)
def test_a_resource_is_read_by_each_spelling_of_its_uri(connect: Start, revision: str) -> None:
    server = connect(revision=revision)
    for uri in ("TEST://text", "test://%74ext", "Test://t%65xt"):
        assert read(server, uri) == [{"uri": uri, "mimeType": "text/plain", "text": "words"}]
    for uri in ("NOTE://two", "note://tw%6f"):
        assert read(server, uri) == [{"uri": uri, "mimeType": "text/plain", "text": "the second"}]
    for uri in ("test://TEXT", "note://Two", "note://tw\u00f6", "note://tw o"):
        assert refused(server, "resources/read", {"uri": uri}).data == {"uri": uri}


@pytest.mark.parametrize("uri", [None, 5, ["test://text"]])
def test_a_uri_that_is_no_string_is_invalid_params(connect: Start, uri: Any) -> None:
    server = connect()
    for method in ("resources/read", "resources/subscribe", "resources/unsubscribe"):
        assert refused(server, method, {"uri": uri}).code == -32602


def test_a_resource_that_says_no_or_has_a_bug_is_an_internal_error_without_secrets(connect: Start) -> None:
    server = connect()
    refusal = refused(server, "resources/read", {"uri": "test://refused"})
    assert (refusal.code, refusal.message) == (-32603, "closed for the day")
    refusal = refused(server, "resources/read", {"uri": "test://crash"})
    assert refusal.code == -32603
    assert refusal.message.startswith("internal error, reference ")


def test_a_resource_may_ask_the_person_in_both_eras(connect: Start) -> None:
    accepted = {"action": "accept", "content": {"name": "Ada"}}
    old = connect(fresh=True, capabilities={"elicitation": {}}, answer=lambda method, params: accepted)
    assert read(old, "test://asked")[0]["text"] == "Ada"
    new = connect(revision=STATELESS, capabilities={"elicitation": {}})
    first = new.request("resources/read", {"uri": "test://asked"})
    assert list(first["inputRequests"]) == ["who"]
    assert "ttlMs" not in first
    again = {"uri": "test://asked", "inputResponses": {"who": accepted}, "requestState": first["requestState"]}
    assert new.request("resources/read", again)["contents"][0]["text"] == "Ada"


# -- subscriptions


@pytest.mark.parametrize("revision", WITH_SESSION)
def test_a_subscriber_is_told_of_changes_until_it_unsubscribes(connect: Start, revision: str) -> None:
    server = connect(fresh=True, revision=revision)
    assert server.request("resources/subscribe", {"uri": "note://one"}) == {}
    server.call("write_note", {"name": "one", "text": "changed"})
    assert server.wait(lambda message: message.get("method") == UPDATED)["params"] == {"uri": "note://one"}
    assert read(server, "note://one")[0]["text"] == "changed"
    assert server.request("resources/unsubscribe", {"uri": "note://one"}) == {}
    server.call("touch", {"uri": "note://one"})
    server.request("resources/subscribe", {"uri": "note://two"})
    server.call("touch", {"uri": "note://two"})
    server.wait(lambda message: message.get("params") == {"uri": "note://two"})
    assert [note["uri"] for note in server.notes(UPDATED)] == ["note://one", "note://two"]


def test_a_subscriber_hears_the_spelling_that_it_used_and_may_end_it_by_another(connect: Start) -> None:
    server = connect(fresh=True)
    for uri in ("NOTE://%6fne", "test://%74ext", "TEST://text"):
        assert server.request("resources/subscribe", {"uri": uri}) == {}
    server.call("write_note", {"name": "one", "text": "changed"})
    assert server.wait(lambda message: message.get("method") == UPDATED)["params"] == {"uri": "NOTE://%6fne"}
    assert server.request("resources/unsubscribe", {"uri": "note://one"}) == {}
    server.call("touch", {"uri": "Note://one"})
    server.call("touch", {"uri": "Test://text"})
    assert eventually(lambda: len(server.notes(UPDATED)) == 3)
    assert {note["uri"] for note in server.notes(UPDATED)} == {"NOTE://%6fne", "test://%74ext", "TEST://text"}
    assert server.request("resources/unsubscribe", {"uri": "test://text"}) == {}
    server.call("touch", {"uri": "test://text"})
    assert server.request("resources/subscribe", {"uri": "note://two"}) == {}
    server.call("touch", {"uri": "note://two"})
    server.wait(lambda message: message.get("params") == {"uri": "note://two"})
    assert len(server.notes(UPDATED)) == 4


def test_an_open_subscription_hears_the_spelling_that_it_named(connect: Start) -> None:
    server = connect(fresh=True, revision=STATELESS)
    server.begin("subscriptions/listen", {"notifications": {"resourceSubscriptions": ["NOTE://%6fne"]}})
    acknowledged = server.wait(lambda message: message.get("method") == "notifications/subscriptions/acknowledged")
    assert acknowledged["params"]["notifications"] == {"resourceSubscriptions": ["NOTE://%6fne"]}
    server.call("write_note", {"name": "one", "text": "changed"})
    assert server.wait(lambda message: message.get("method") == UPDATED)["params"]["uri"] == "NOTE://%6fne"


def test_an_open_subscription_is_told_of_the_resources_it_named(connect: Start) -> None:
    server = connect(fresh=True, revision=STATELESS)
    wanted = {"resourceSubscriptions": ["note://one", "no://such"], "promptsListChanged": True}
    id = server.begin("subscriptions/listen", {"notifications": wanted})
    acknowledged = server.wait(lambda message: message.get("method") == "notifications/subscriptions/acknowledged")
    assert acknowledged["params"]["notifications"] == {
        "promptsListChanged": True,
        "resourceSubscriptions": ["note://one"],
    }
    server.call("touch", {"uri": "note://two"})
    server.call("write_note", {"name": "one", "text": "changed"})
    told = server.wait(lambda message: message.get("method") == UPDATED)
    assert told["params"] == {"_meta": {"io.modelcontextprotocol/subscriptionId": id}, "uri": "note://one"}


def test_a_burst_of_changes_is_told_at_once_and_once_more(connect: Start) -> None:
    server = connect(fresh=True)
    server.request("resources/subscribe", {"uri": "test://text"})
    server.call("touch", {"uri": "test://text", "times": 1_000})
    assert eventually(lambda: len(server.notes(UPDATED)) == 2)
    server.call("touch", {"uri": "test://text"})
    assert eventually(lambda: len(server.notes(UPDATED)) == 3)


def test_what_is_not_there_can_not_be_subscribed_to(connect: Start) -> None:
    assert refused(connect(), "resources/subscribe", {"uri": "no://such"}).code == -32002


def test_a_subscription_ends_with_its_session_and_with_its_request(tmp_path: Path) -> None:
    async def body() -> None:
        async with inside(tmp_path) as here:
            updates = here.app.host.server().updates
            session = await here.session()
            asked = {"jsonrpc": "2.0", "id": 1, "method": "resources/subscribe", "params": {"uri": "note://one"}}
            assert (await here.ask("POST", asked, mcp_session_id=session).json())["result"] == {}
            wanted = {"notifications": {"resourceSubscriptions": ["note://one", "note://two"]}}
            meta = {
                "io.modelcontextprotocol/protocolVersion": STATELESS,
                "io.modelcontextprotocol/clientCapabilities": {},
            }
            listen = {"jsonrpc": "2.0", "id": 2, "method": "subscriptions/listen", "params": {**wanted, "_meta": meta}}
            headers = {"mcp_protocol_version": STATELESS, "mcp_method": "subscriptions/listen"}
            stream = here.ask("POST", listen, **headers)
            await stream.first("notifications/subscriptions/acknowledged")
            assert len(updates) == 2
            await stream.hang_up()
            while len(updates) == 2:
                await asyncio.sleep(0)
            assert len(updates) == 1
            await here.ask("DELETE", mcp_session_id=session).started()
            assert len(updates) == 0

    asyncio.run(asyncio.wait_for(body(), PATIENCE))


@pytest.mark.parametrize("revision", [WITH_SESSION[-1], STATELESS])
def test_a_change_of_what_is_listed_is_told_to_its_principal(connect: Start, revision: str) -> None:
    server = connect(fresh=True, revision=revision)
    if revision == STATELESS:
        server.begin("subscriptions/listen", {"notifications": {"resourcesListChanged": True}})
        server.wait(lambda message: message.get("method") == "notifications/subscriptions/acknowledged")

    def told() -> int:
        return [message.get("method") for message in server.messages].count("notifications/resources/list_changed")

    server.call("BackgroundBash", {"command": "true"})
    assert eventually(lambda: told() == 1)
    server.call("TaskManager", {"action": "create", "query": "listed"})
    assert eventually(lambda: told() == 2)


@pytest.mark.parametrize("wanted", [{"resourceSubscriptions": "note://one"}, {"resourceSubscriptions": [5]}])
def test_a_filter_of_the_wrong_shape_is_invalid_params(connect: Start, wanted: dict[str, Any]) -> None:
    assert refused(connect(revision=STATELESS), "subscriptions/listen", {"notifications": wanted}).code == -32602


def test_more_subscriptions_than_anyone_needs_are_refused(connect: Start) -> None:
    server = connect()
    for number in range(1_000):
        server.begin("resources/subscribe", {"uri": f"many://{number}"})
    refusal = refused(server, "resources/subscribe", {"uri": "many://one-more"})
    assert (refusal.code, refusal.message) == (-32600, "more than 1000 subscriptions")
