"""The log of a real server, as text and as JSON: the request of each line, and no forged lines."""

import json
import logging
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.clients.raw_client import STATELESS, Refusal, Server, eventually
from tests.clients.raw_http_client import Site, site, spoken
from tests.server.auth.minted_tokens import Signed, asked
from tests.servers.isolated_plugins import needs_isolation
from toolgate.server.auth.tokens.access_tokens import OWN_ISSUER
from toolgate.server.base.log_format import FORMATTERS, TextFormatter
from toolgate.server.base.principals.principal import Principal

PLUGIN = """
from toolgate.tools import tool

@tool(read_only=True)
async def fail(text: str) -> str:
    "Raise what no tool should."
    raise RuntimeError(text)
"""
FORGED = "gone\n2026-01-01 00:00:00,000 WARNING toolgate.auth: sign-in accepted\r\x1b[31mred\u2028\u202eback\udc80"
HEAD = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3} [A-Z]+ [\w.]+: .*")
MADE = re.compile(r"[0-9a-f]{16}")


def plugins(folder: Path) -> str:
    (folder / "failing").mkdir()
    (folder / "failing" / "failing.py").write_text(PLUGIN)
    return str(folder / "failing")


@pytest.fixture(scope="module")
def signed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Signed]:
    """Run a server with the tests as its proxy, which logs everything as JSON, also to a file."""
    folder = tmp_path_factory.mktemp("logs")
    told = ("-v", "--log-format", "json", "-l", str(folder / "logs"), "--trusted-proxies", "127.0.0.1")
    with site(folder, "-p", plugins(folder), "--auth", "oauth", *told) as listening:
        yield Signed(listening)


def entries(listening: Site) -> list[dict[str, Any]]:
    """Return the log's lines as objects."""
    return [json.loads(line) for line in listening.log().splitlines()]


def about(listening: Site, request: str) -> list[dict[str, Any]]:
    return [entry for entry in entries(listening) if entry.get("request") == request]


def test_a_log_line_of_a_request_has_its_id_and_principal(signed: Signed) -> None:
    told = {"name": "fail", "arguments": {"text": FORGED.rstrip("\udc80")}}
    token = signed.token("ada")
    response, _, said = asked(signed, token, "tools/call", told)
    id = response.getheader("x-request-id")
    assert MADE.fullmatch(id)
    assert eventually(lambda: about(signed.site, id))
    (entry,) = [held for held in about(signed.site, id) if held["level"] == "error"]
    assert list(entry) == ["time", "level", "logger", "message", "request", "principal", "exception"]
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", entry["time"])
    assert entry["logger"] == "toolgate.dispatcher"
    assert entry["principal"] == Principal(OWN_ISSUER, "ada", "").name
    reference = said["error"]["message"].rpartition(" ")[2]
    assert f"reference {reference}" in entry["message"]
    assert "RuntimeError: gone\n2026" in entry["exception"]
    other, _, _ = asked(signed, token, "tools/list")
    assert abs(int(other.getheader("x-request-id") or "", 16) - int(id or "", 16)) > 1_000, "it counts requests"


def test_a_request_keeps_the_id_that_a_trusted_proxy_gave_it_if_it_may_be_in_a_log(signed: Signed) -> None:
    for given in ("a", "Ab.9_-" * 10, "0" * 64):
        response, _, _ = signed.site.ask("GET", "/health", x_request_id=given)
        assert response.getheader("x-request-id") == given
    for given in ("", "0" * 65, "two words", "a\tb", "a;b", 'a"b', "caf\u00e9"):
        response, _, _ = signed.site.ask("GET", "/health", x_request_id=given)
        assert MADE.fullmatch(response.getheader("x-request-id") or ""), given


def test_the_answer_to_what_is_refused_has_an_id_too(signed: Signed) -> None:
    for method, path in (("POST", "/mcp"), ("GET", "/nothing"), ("PUT", "/health"), ("GET", "/login")):
        response, _, _ = signed.site.ask(method, path)
        assert MADE.fullmatch(response.getheader("x-request-id") or ""), path


def test_no_secret_is_logged_however_much_is_logged(signed: Signed) -> None:
    token = signed.token("ada")
    asked(signed, token, "tools/list")
    signed.site.ask("POST", "/mcp", {}, authorization="Bearer " + "wrong-token-" * 3)
    signed.site.ask("GET", "/account", cookie="toolgate-session=" + "cookie-secret" * 3)
    form = {"content_type": "application/x-www-form-urlencoded"}
    signed.site.ask("POST", "/login", b"username=nobody&password=pass-secret-word", **form)
    signed.site.ask("POST", "/token", b"grant_type=authorization_code&code=code-secret", **form)
    file = next((signed.site.state.parent / "logs").iterdir()).read_text()
    for log in (signed.site.log(), file):
        for secret in (token, token.rpartition(".")[2], "wrong-token", "cookie-secret", "pass-secret", "code-secret"):
            assert secret not in log


def test_the_file_has_whole_lines_where_those_of_standard_error_lose_their_middle(signed: Signed) -> None:
    asked(signed, signed.token("ada"), "tools/call", {"name": "fail", "arguments": {"text": "\u00e9" * 9_000}})
    assert eventually(lambda: "\\u00e9\\u00e9" in signed.site.log())
    longest = max(signed.site.log().splitlines(), key=len)
    assert 2_000 < len(longest) <= 4_000 and " ... " in json.loads(longest)["exception"]
    file = next((signed.site.state.parent / "logs").iterdir()).read_text().splitlines()
    assert max(len(json.loads(line).get("exception", "")) for line in file) > 9_000


def test_as_text_no_client_text_begins_a_line_and_no_client_chooses_an_id(tmp_path: Path) -> None:
    with site(tmp_path, "-v", "-p", plugins(tmp_path)) as listening:
        with spoken(listening, "sse") as client, pytest.raises(Refusal):
            client.call("fail", {"text": FORGED.rstrip("\udc80")})
        response, _, _ = listening.ask("GET", "/health", x_request_id="chosen")
        assert MADE.fullmatch(response.getheader("x-request-id") or "")
        assert "chosen" not in listening.log()
        lines = listening.log().split("\n")
    assert lines.pop() == ""
    assert all(HEAD.fullmatch(line) or line.startswith("  ") for line in lines)
    assert not any(line.startswith("2026-01-01 00:00:00") for line in lines)
    assert "\x1b" not in "".join(lines) and "\r" not in "".join(lines)
    (failed,) = [line for line in lines if "toolgate.dispatcher: reference" in line]
    assert re.search(r" \[[0-9a-f]{16}\]$", failed)


@needs_isolation
def test_a_server_over_stdio_logs_objects_too_and_so_does_a_plugin_in_its_own_process(
    start: Any, tmp_path: Path
) -> None:
    (tmp_path / "telling").mkdir()
    (tmp_path / "telling" / "telling.py").write_text(
        "import logging\n" + PLUGIN + "\nlogging.getLogger('toolgate.plugin').warning('one\\ntwo')\n"
    )
    options = ("--log-format", "json", "--isolate-plugins", "-p", str(tmp_path / "telling"))
    server: Server = start(*options, revision=STATELESS)
    server.request("tools/list")
    assert eventually(lambda: "one" in server.log())
    said = [json.loads(line) for line in server.log().splitlines()]
    assert "one\ntwo" in [entry["message"] for entry in said]


@pytest.mark.parametrize("style", sorted(FORMATTERS))
def test_whatever_is_logged_is_lines_of_one_kind(style: str) -> None:
    lines: TextFormatter = FORMATTERS[style](4_000)
    for text in (
        FORGED,
        "",
        "\0",
        "\ud800",
        "\x7f\x85\u2029",
        "x" * 100_000,
        "\U0001f600" * 5_000,
        '"}\n{"level": "x"',
    ):
        try:
            raise ValueError(text)
        except ValueError as error:
            info: Any = (type(error), error, error.__traceback__)
        for message in (text, "short"):
            record = logging.LogRecord("toolgate", logging.ERROR, "", 0, "%s", (message,), info)
            first, *more = lines.format(record).split("\n")
            assert (first + "".join(more)).isprintable()
            if style == "json":
                assert not more and len(first) <= 4_000 and first.isascii()
                assert json.loads(first)["level"] == "error"
            else:
                assert HEAD.fullmatch(first) and all(line.startswith("  ") for line in more)
