"""MCP messages to a path that is not a transport's: the refusal names the URLs that take them."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.clients.raw_http_client import Site, site
from tests.server.auth.minted_tokens import ENVELOPE, HELLO, Signed, request, signed_site

INITIALIZE = request("initialize", HELLO)
DISCOVER = request("server/discover", {"_meta": ENVELOPE})
PAGES = ["/", "/login", "/login/", "/account", "/consent", "/logout", "/authorize", "/events", "/favicon.ico"]
UNKNOWN = ["/nope", "/mcp/v1", "/sse/messages", "//", "/.well-known/nope"]
FORM = {"content_type": "application/x-www-form-urlencoded"}


@pytest.fixture(scope="module")
def signed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Signed]:
    with signed_site(tmp_path_factory.mktemp("signed")) as server:
        yield server


def assert_names(answer: Any, *urls: str) -> None:
    """Assert that the answer is a JSON-RPC error that names these URLs and no other."""
    response, _, error = answer
    assert response.status == 404
    assert (error["jsonrpc"], error["id"], error["error"]["code"]) == ("2.0", None, -32600)
    words = error["error"]["message"].replace(",", "").split()
    assert [word for word in words if word.startswith("http")] == list(urls)


@pytest.mark.parametrize("path", [*PAGES, *UNKNOWN])
@pytest.mark.parametrize("message", [INITIALIZE, DISCOVER], ids=["initialize", "discover"])
def test_a_message_to_a_page_or_an_unknown_path_names_the_endpoints(
    shared: Site, signed: Signed, path: str, message: Any
) -> None:
    for server in (shared, signed.site):
        assert_names(server.ask("POST", path, message), f"{server.url}/mcp", f"{server.url}/sse")


@pytest.mark.parametrize("kind", ["application/json; charset=utf-8", "Application/JSON", " application/json "])
def test_each_spelling_of_the_media_type_counts(shared: Site, kind: str) -> None:
    answer = shared.ask("POST", "/", INITIALIZE, content_type=kind)
    assert_names(answer, f"{shared.url}/mcp", f"{shared.url}/sse")


def test_a_message_with_a_token_is_refused_alike(signed: Signed) -> None:
    answer = signed.site.ask("POST", "/", INITIALIZE, authorization=signed.bearer())
    assert_names(answer, f"{signed.site.url}/mcp", f"{signed.site.url}/sse")


def test_a_client_that_opens_a_stream_on_an_unknown_path_gets_the_endpoints_too(shared: Site) -> None:
    answer = shared.ask("GET", "/nope", accept="text/event-stream")
    assert_names(answer, f"{shared.url}/mcp", f"{shared.url}/sse")


def test_forms_and_programs_are_answered_as_before(shared: Site, signed: Signed) -> None:
    response, _, _ = signed.site.ask("POST", "/", b"stop=1", accept="text/html", **FORM)
    assert (response.status, response.getheader("location")) == (303, "/login")
    assert signed.site.ask("POST", "/login", b"name=ada", accept="text/html", **FORM)[0].status == 403
    response, _, refusal = signed.site.ask("POST", "/register", {})
    assert (response.status, sorted(refusal)) == (400, ["error", "error_description"])
    assert shared.ask("POST", "/health", INITIALIZE)[0].status == 405
    assert shared.ask("GET", "/nope", accept="application/json")[1] == b"Not Found"
    assert shared.ask("GET", "/", accept="application/json")[2]["mcp"] == f"{shared.url}/mcp"


@pytest.mark.alone
@pytest.mark.parametrize("path", ["/", "/tools/", "/tools/login", "/nope"])
def test_the_urls_are_public_ones(tmp_path: Path, path: str) -> None:
    with site(
        tmp_path, "--auth", "oauth", "--public-url", "https://mcp.example.com/tools", "--accept-unsandboxed"
    ) as server:
        answer = server.ask("POST", path, INITIALIZE, host="mcp.example.com")
        assert_names(answer, "https://mcp.example.com/tools/mcp", "https://mcp.example.com/tools/sse")
