"""The table and the sentences of docs/differences.md hold for the real server."""

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.clients.raw_client import REVISIONS, ROOT, STATELESS, WITH_SESSION, Refusal, Server
from tests.clients.raw_http_client import Site, spoken

Start = Callable[..., Server]
PAGE = (ROOT / "docs" / "differences.md").read_text()
ROW = re.compile(r"^\| `([\w/]+)` \| `(\{.*\})` \| (-\d+|answered) \| (-\d+|answered) \|$", re.M)
VERSION = "io.modelcontextprotocol/protocolVersion"


def rows(revision: str) -> Iterator[tuple[str, dict[str, Any], str]]:
    for method, params, before, since in ROW.findall(PAGE):
        yield method, json.loads(params), since if revision == STATELESS else before


def answer(server: Server, method: str, params: dict[str, Any]) -> str:
    try:
        server.request(method, params)
    except Refusal as refusal:
        return str(refusal.code)
    return "answered"


@pytest.mark.parametrize("revision", REVISIONS)
def test_each_row_of_the_table_is_what_the_server_answers(start: Start, revision: str) -> None:
    table = PAGE[PAGE.index("| method |") :]
    assert len(ROW.findall(PAGE)) == table[: table.index("\n\n")].count("\n") - 1 > 15  # none is left unread
    server = start(revision=revision)
    said = [(method, params, answer(server, method, params)) for method, params, _ in rows(revision)]
    assert said == list(rows(revision))


@pytest.mark.parametrize("revision", REVISIONS)
def test_a_resource_that_is_not_there_is_named_in_the_data(start: Start, revision: str) -> None:
    with pytest.raises(Refusal) as caught:
        start(revision=revision).request("resources/read", {"uri": "nothing://here"})
    assert caught.value.data == {"uri": "nothing://here"}


def test_arguments_that_do_not_fit_are_the_tools_error_and_name_the_argument(start: Start) -> None:
    assert '"command"' in start().error("Bash", {"command": 1})


def test_the_three_codes_of_2026_07_28(listen: Callable[..., Site]) -> None:
    site = listen()
    with spoken(site, "http", revision=STATELESS) as client:
        with pytest.raises(Refusal) as caught:
            client.call("ask_together")
        required = {"requiredCapabilities": {"roots": {}, "sampling": {}}}
        assert (caught.value.code, caught.value.data) == (-32021, required)
        meta = {**client.envelope(), VERSION: "1900-01-01"}
    asked: dict[str, Any] = {"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": {"_meta": meta}}
    headers = {"mcp_protocol_version": "1900-01-01", "mcp_method": "tools/list"}
    response, _, body = site.ask("POST", "/mcp", asked, **headers)
    assert (response.status, body["error"]["code"]) == (400, -32022)
    assert body["error"]["data"]["requested"] == "1900-01-01" and STATELESS in body["error"]["data"]["supported"]
    meta[VERSION] = STATELESS
    response, _, body = site.ask("POST", "/mcp", asked, mcp_protocol_version=STATELESS, mcp_method="tools/call")
    assert (response.status, body["error"]["code"]) == (400, -32020)
    published = re.findall(r"^\| -\d+ \| (-\d+) \|", PAGE, re.M)
    assert published == ["-32020", "-32021", "-32022"]


def test_a_bare_initialized_is_ignored(start: Start) -> None:
    server = start()
    server.notify("initialized")
    server.request("ping")
    assert len([message for message in server.messages if "id" in message]) == 2  # of initialize and ping


@pytest.mark.parametrize("role", ["system", "developer"])
def test_a_prompt_with_another_role_is_refused_at_load(start: Start, tmp_path: Path, role: str) -> None:
    (tmp_path / "plugins").mkdir()
    (tmp_path / "plugins" / "lecture.py").write_text(
        f'from toolgate.tools import prompt\n\n@prompt(role="{role}")\ndef lecture() -> str:\n    """Be stern."""\n'
    )
    server = start("-p", str(tmp_path / "plugins"))
    assert "lecture" not in {part["name"] for part in server.request("prompts/list")["prompts"]}
    assert "lecture.py" in server.log() and repr(role) in server.log()


def test_tasks_of_the_core_are_not_declared(start: Start) -> None:
    assert "tasks" not in start(revision="2025-11-25").hello["capabilities"]


@pytest.mark.parametrize("revision", WITH_SESSION)
def test_a_batch_is_known_to_one_revision(start: Start, revision: str) -> None:
    server = start(revision=revision)
    server.write(b'[{"jsonrpc":"2.0","id":"a","method":"ping"},{"jsonrpc":"2.0","id":"b","method":"ping"}]\n')
    said = server.wait(lambda message: message.get("id") in ("a", None))
    assert ("result" in said) == (revision == "2025-03-26")
    assert "result" in said or (said["id"], said["error"]["code"]) == (None, -32600)


@pytest.mark.parametrize(
    ("sent", "id", "code"),
    [
        (b"{", None, -32700),
        (b"3", None, -32600),
        (b"[]", None, -32600),
        (b'{"jsonrpc": "2.0", "id": null, "method": "ping"}', None, -32600),
        (b'{"jsonrpc": "2.0", "id": 1.5, "method": "ping"}', None, -32600),
        (b'{"id": 77, "method": "ping"}', 77, -32600),
        (b'{"jsonrpc": "2.0", "id": "seven"}', "seven", -32600),
    ],
)
def test_a_message_without_a_readable_id_is_answered_with_null(start: Start, sent: bytes, id: Any, code: int) -> None:
    server = start()
    server.write(sent + b"\n")
    said = server.wait(lambda message: "error" in message)
    assert (said["id"], said["error"]["code"]) == (id, code)


def test_a_deleted_session_is_not_found(shared: Site) -> None:
    with spoken(shared, "http") as client:
        session = getattr(client, "session", "")
        response, _, _ = shared.ask("DELETE", "/mcp", mcp_session_id=session)
        assert response.status < 300
        ping = {"jsonrpc": "2.0", "id": 1, "method": "ping"}
        response, _, _ = shared.ask("POST", "/mcp", ping, mcp_session_id=session)
        assert response.status == 404


@pytest.mark.parametrize("revision", ["2025-11-25", STATELESS])
def test_log_messages_before_a_level_is_named(probe: Start, revision: str) -> None:
    server = probe(revision=revision)
    server.text("talk")  # debug, notice, error
    levels = [note["level"] for note in server.notes("notifications/message")]
    assert levels == ([] if revision == STATELESS else ["notice", "error"])


def test_the_page_cites_only_pages_of_known_revisions() -> None:
    assert set(re.findall(r"\b20\d\d-\d\d-\d\d\b", PAGE)) == set(REVISIONS)
