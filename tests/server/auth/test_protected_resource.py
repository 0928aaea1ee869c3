"""The protected resource over real HTTP: valid tokens, challenges, and what a scope allows."""

import contextlib
import re
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from tests.clients.raw_client import STATELESS, eventually
from tests.clients.raw_http_client import events, site
from tests.server.auth.minted_tokens import ENVELOPE, HELLO, Signed, asked, challenge, request, session, signed_site
from tests.server.auth.outside_issuer import outside_issuer
from tests.server.auth.test_ownership import opened
from toolgate.server.auth.tokens import jose
from toolgate.server.auth.tokens.signing_keys import ANNOUNCE_TIME
from toolgate.server.base.principals.scopes import READ, SERVED, SHELL, WEB, WORKFLOW

WELL_KNOWN = "/.well-known/oauth-protected-resource"
DOORS = [
    ("POST", "/mcp"),
    ("GET", "/mcp"),
    ("DELETE", "/mcp"),
    ("HEAD", "/mcp"),
    ("PUT", "/mcp"),
    ("PATCH", "/mcp"),
    ("POST", "/mcp/"),
    ("GET", "/mcp/"),
    ("GET", "/sse"),
    ("POST", "/sse"),
    ("DELETE", "/sse"),
    ("POST", "/messages"),
    ("POST", "/messages?session_id=abc"),
    ("GET", "/messages"),
]


@pytest.fixture(scope="module")
def signed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Signed]:
    with signed_site(tmp_path_factory.mktemp("signed")) as held:
        yield held


# -- who is let in


@pytest.mark.parametrize(("method", "path"), DOORS)
def test_pr_01_pr_02_pr_03_pr_06_without_a_token_every_door_says_where_to_sign_in(
    signed: Signed, method: str, path: str
) -> None:
    response, _, _ = signed.site.ask(method, path)
    assert response.status == 401
    about = "/mcp" if path.startswith("/mcp") else "/sse"
    assert challenge(response) == {  # PR-04: no error, as no token was sent; PR-06: no offline_access
        "resource_metadata": f"{signed.issuer}{WELL_KNOWN}{about}",
        "scope": " ".join(SERVED),
    }


def test_pr_01_no_body_is_read_before_the_caller_is_known(signed: Signed) -> None:
    with contextlib.closing(signed.site.connect()) as connection:
        connection.putrequest("POST", "/mcp")
        connection.putheader("Content-Type", "application/json")
        connection.putheader("Content-Length", str(15 * 2**20))
        connection.endheaders()  # and not a byte of it
        assert connection.getresponse().status == 401


@pytest.mark.parametrize("scheme", ["Basic YTpi", "Digest x", "DPoP abc", "bearer", "", "Token abc"])
def test_pr_04_what_is_no_bearer_token_counts_as_none(signed: Signed, scheme: str) -> None:
    response, _, _ = signed.site.ask("POST", "/mcp", request("ping"), authorization=scheme)
    assert response.status == 401
    if scheme != "bearer":
        assert "error" not in challenge(response)


@pytest.mark.parametrize(
    "value", ["abc", "a.b.c", "Bearer", "x y", "x, Bearer y", "é", "%00", "'; drop table", "x" * 30_000, "=", "a=b"]
)
@pytest.mark.parametrize(("method", "path"), [("POST", "/mcp"), ("GET", "/sse"), ("POST", "/messages?session_id=x")])
def test_pr_04_a_bad_token_is_called_one_and_is_not_repeated(
    signed: Signed, method: str, path: str, value: str
) -> None:
    told = f"Bearer {value}".encode("latin-1").decode("latin-1")
    response, content, _ = signed.site.ask(method, path, authorization=told)
    assert response.status == 401
    assert challenge(response)["error"] == "invalid_token"
    assert len(value) < 10 or value.encode("latin-1") not in content + str(response.headers).encode()


@pytest.mark.parametrize("scheme", ["Bearer", "bearer", "BEARER"])
def test_a_good_token_is_let_in(signed: Signed, scheme: str) -> None:
    response, _, said = signed.site.ask(
        "POST", "/mcp", request("initialize", HELLO), authorization=f"{scheme} {signed.token()}"
    )
    assert (response.status, said["result"]["protocolVersion"]) == (200, "2025-11-25")
    assert response.getheader("www-authenticate") is None


def test_a_token_for_sse_is_good_at_mcp_and_the_other_way_round(signed: Signed) -> None:
    for aud in (f"{signed.issuer}/mcp", f"{signed.issuer}/sse"):
        bearer = signed.bearer(aud=aud)
        assert signed.site.ask("POST", "/mcp", request("initialize", HELLO), authorization=bearer)[0].status == 200
        with contextlib.closing(signed.site.connect()) as connection:
            connection.request("GET", "/sse", headers={"Authorization": bearer})
            assert next(events(connection.getresponse()))["event"] == "endpoint"


BAD = {
    "another audience": {"aud": "https://other.example/mcp"},
    "the issuer itself": {"aud": None, "azp": "x"},
    "another issuer": {"iss": "https://evil.example"},
    "expired": {"exp": 1_000_000_000},
    "not yet": {"nbf": 9_000_000_000},
    "typed as an ID token": {"typ": "JWT"},
    "typed as a refresh token": {"typ": "rt+jwt"},
    "a foreign key": {"key": jose.generate_key()},
}


@pytest.mark.parametrize("wrong", BAD.values(), ids=BAD)
@pytest.mark.parametrize(("method", "path"), [("POST", "/mcp"), ("GET", "/sse"), ("POST", "/messages?session_id=x")])
def test_pr_09_sec_15_pr_15_every_transport_asks_the_same_verifier(
    signed: Signed, method: str, path: str, wrong: dict[str, Any]
) -> None:
    response, _, _ = signed.site.ask(method, path, authorization=signed.bearer(**wrong))
    assert (response.status, challenge(response)["error"]) == (401, "invalid_token")


@pytest.mark.parametrize(
    "name", ["access_token", "ACCESS_TOKEN", "access%5Ftoken", "%61ccess_token", "x=1&access_token"]
)
@pytest.mark.parametrize("path", ["/mcp", "/sse", "/messages"])
def test_pr_08_a_token_in_the_url_is_never_taken(signed: Signed, path: str, name: str) -> None:
    token = signed.token()
    method = "GET" if path == "/sse" else "POST"
    alone, _, _ = signed.site.ask(method, f"{path}?{name}={token}")
    assert (alone.status, challenge(alone)["error"]) == (401, "invalid_request")
    both, _, _ = signed.site.ask(method, f"{path}?{name}={token}", authorization=f"Bearer {token}")
    assert (both.status, challenge(both)["error"]) == (400, "invalid_request")
    assert token not in signed.site.log()


def test_pr_08_a_token_in_the_body_or_a_cookie_is_never_taken(signed: Signed) -> None:
    token = signed.token()
    form = f"access_token={token}".encode()
    told = {"content_type": "application/x-www-form-urlencoded", "cookie": f"access_token={token}"}
    assert signed.site.ask("POST", "/mcp", form, **told)[0].status == 401
    assert signed.site.ask("POST", "/mcp", {**request("ping"), "access_token": token})[0].status == 401


def test_pr_08_every_request_of_a_session_brings_its_token(signed: Signed) -> None:
    id = session(signed, signed.token())
    response, _, _ = signed.site.ask("POST", "/mcp", request("tools/list"), mcp_session_id=id)
    assert response.status == 401


def test_two_tokens_in_one_request_are_refused(signed: Signed) -> None:
    with contextlib.closing(signed.site.connect()) as connection:
        connection.putrequest("POST", "/mcp")
        for subject in ("ada", "bob"):
            connection.putheader("Authorization", signed.bearer(subject))
        connection.putheader("Content-Length", "0")
        connection.endheaders()
        assert connection.getresponse().status == 400


def test_pr_13_options_needs_no_token_and_the_probes_are_for_anyone(signed: Signed) -> None:
    for path in ("/mcp", "/sse", "/messages"):
        preflight, _, _ = signed.site.ask("OPTIONS", path, origin="http://localhost:6274")
        assert preflight.status == 204
        assert b"authorization" in (preflight.getheader("access-control-allow-headers") or "").encode()
        assert signed.site.ask("OPTIONS", path)[0].status != 401
    for path in ("/health", "/ready"):
        assert signed.site.ask("GET", path)[0].status == 200


def test_a_page_may_read_the_challenge(signed: Signed) -> None:
    response, _, _ = signed.site.ask("POST", "/mcp", request("ping"), origin="http://localhost:6274")
    assert response.status == 401
    assert "www-authenticate" in (response.getheader("access-control-expose-headers") or "")


def test_pr_13_a_foreign_page_is_refused_with_a_token_or_without(signed: Signed) -> None:
    for told in ({}, {"authorization": signed.bearer()}):
        assert signed.site.ask("POST", "/mcp", request("ping"), origin="https://evil.example", **told)[0].status == 403
        assert signed.site.ask("POST", "/mcp", request("ping"), host="evil.example", **told)[0].status == 421


def test_behind_a_proxy_it_is_served(signed: Signed) -> None:
    told = {"x_forwarded_for": "10.0.0.1", "x_forwarded_host": "evil.example", "x_forwarded_proto": "https"}
    response, _, _ = signed.site.ask("POST", "/mcp", request("ping"), **told)
    assert response.status == 401
    assert "evil.example" not in str(response.headers)


def test_a_token_is_in_no_log_though_it_was_refused_or_a_call_failed(signed: Signed) -> None:
    for bearer in (signed.bearer(), signed.bearer(exp=5), signed.bearer(key=jose.generate_key())):
        signed.site.ask("POST", "/mcp", request("tools/call", {"name": 7}), authorization=bearer)
        assert bearer.removeprefix("Bearer ").split(".")[2] not in signed.site.log()


# -- metadata


@pytest.mark.parametrize(
    ("path", "about"),
    [
        (WELL_KNOWN, "/mcp"),
        (f"{WELL_KNOWN}/mcp", "/mcp"),
        (f"{WELL_KNOWN}/sse", "/sse"),
        (f"/mcp{WELL_KNOWN}", "/mcp"),
        (f"/sse{WELL_KNOWN}", "/sse"),
    ],
)
def test_pr_05_pr_06_the_metadata_names_the_resource_a_person_typed(signed: Signed, path: str, about: str) -> None:
    response, _, said = signed.site.ask("GET", path)
    assert (response.status, response.getheader("content-type")) == (200, "application/json")
    assert said == {
        "resource": signed.issuer + about,
        "authorization_servers": [signed.issuer],
        "scopes_supported": list(SERVED),  # PR-06: without offline_access
        "bearer_methods_supported": ["header"],
        "resource_name": "toolgate",
    }


@pytest.mark.parametrize("path", [WELL_KNOWN, f"{WELL_KNOWN}/mcp", f"/sse{WELL_KNOWN}"])
def test_pr_07_any_page_may_read_the_metadata_and_keep_it_a_while(signed: Signed, path: str) -> None:
    for origin in ({}, {"origin": "https://anywhere.example"}, {"origin": "null"}):
        response, content, _ = signed.site.ask("GET", path, **origin)
        assert (response.status, response.getheader("access-control-allow-origin")) == (200, "*")
        found = re.fullmatch(r"public, max-age=(\d+)", response.getheader("cache-control") or "")
        assert found and 0 < int(found[1]) <= 3600
        head, nothing, _ = signed.site.ask("HEAD", path, **origin)
        assert (head.status, nothing, head.getheader("content-length")) == (200, b"", str(len(content)))
        preflight, _, _ = signed.site.ask("OPTIONS", path, **origin)
        assert (preflight.status, preflight.getheader("access-control-allow-origin")) == (204, "*")
        assert "GET" in (preflight.getheader("access-control-allow-methods") or "")
    refused, _, _ = signed.site.ask("POST", path, {})
    assert (refused.status, refused.getheader("allow")) == (405, "GET, HEAD, OPTIONS")


def test_metadata_comes_from_the_public_url_and_not_from_the_request(tmp_path: Path) -> None:
    public = "https://Tools.Example:443/agents/"
    unsandboxed = ("--sandbox", "none", "--accept-unsandboxed")
    with signed_site(tmp_path, "--public-url", public, *unsandboxed) as held:
        told = {"host": "tools.example", "x_forwarded_host": "evil.example", "forwarded": "host=evil.example"}
        for path in (
            WELL_KNOWN,
            f"{WELL_KNOWN}/agents",
            f"{WELL_KNOWN}/agents/mcp",
            f"{WELL_KNOWN}/mcp",
            f"/agents{WELL_KNOWN}",
            f"/agents/mcp{WELL_KNOWN}",
            f"/mcp{WELL_KNOWN}",
        ):
            response, _, said = held.site.ask("GET", path, **told)
            assert response.status == 200, path
            assert (said["resource"], said["authorization_servers"]) == (
                "https://tools.example/agents/mcp",
                ["https://tools.example/agents"],
            )
        held.issuer = "https://tools.example/agents"
        for path in ("/mcp", "/agents/mcp"):  # a proxy may take the prefix off, or not
            response, _, _ = held.site.ask("POST", path, request("ping"), **told)
            assert (response.status, challenge(response)["resource_metadata"]) == (
                401,
                f"https://tools.example{WELL_KNOWN}/agents/mcp",
            )
            hello = request("initialize", HELLO)
            assert held.site.ask("POST", path, hello, **told, authorization=held.bearer())[0].status == 200
        assert "--sandbox none" in held.site.log()


def test_the_word_that_proves_the_domain_is_told_to_anyone_and_only_when_there_is_one(
    signed: Signed, tmp_path: Path
) -> None:
    path = "/.well-known/openai-apps-challenge"
    with signed_site(tmp_path, "--openai-challenge", "Abc-123_x") as held:
        response, content, _ = held.site.ask("GET", path)
        assert (response.status, content) == (200, b"Abc-123_x")
        assert (response.getheader("content-type") or "").startswith("text/plain")
        assert held.site.ask("POST", path, {})[0].status == 405
    assert signed.site.ask("GET", path)[0].status == 404


def test_without_plugins_their_scope_is_not_asked_for(tmp_path: Path) -> None:
    with site(tmp_path, "--auth", "oauth") as listening:
        response, _, _ = listening.ask("POST", "/mcp")
        assert challenge(response)["scope"] == f"{READ} {WEB} {WORKFLOW} {SHELL}"


# -- where a token goes no further


class _Upstream(BaseHTTPRequestHandler):
    seen: list[str]

    def do_GET(self) -> None:
        self.seen.append(str(self.headers))
        body = b"<html><body><p>a page of words, long enough to be one</p></body></html>"
        self.send_response(200)
        self.send_header("Content-Type", "text/html")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None: ...


def test_pr_10_mcp_03_a_token_reaches_no_upstream_and_no_command(tmp_path: Path) -> None:
    seen: list[str] = []
    upstream = HTTPServer(("127.0.0.1", 0), type("Seen", (_Upstream,), {"seen": seen}))
    threading.Thread(target=upstream.serve_forever, args=(0.02,), daemon=True).start()
    try:
        with signed_site(tmp_path, "--allow-private", "127.0.0.1") as held:
            token = held.token()
            url = f"http://127.0.0.1:{upstream.server_port}/page"
            _, content, _ = asked(held, token, "tools/call", {"name": "ReadDocs", "arguments": {"url": url}})
            assert b"a page of words" in content
            command = "env; tr '\\0' '\\n' < /proc/$PPID/environ; cat /proc/$PPID/cmdline"
            _, content, _ = asked(held, token, "tools/call", {"name": "Bash", "arguments": {"command": command}})
            assert b"PATH=" in content
        secret = token.split(".")[2]
        assert seen and not any(secret in text or "authorization" in text.lower() for text in seen)
        assert secret.encode() not in content
    finally:
        upstream.shutdown()
        upstream.server_close()


def test_a_server_that_trusts_an_issuer_it_can_t_reach_says_so_and_when_to_come_back(tmp_path: Path) -> None:
    with signed_site(tmp_path, "--auth", "http://127.0.0.1:9/realm") as held:
        theirs = held.bearer(iss="http://127.0.0.1:9/realm")
        response, _, _ = held.site.ask("POST", "/mcp", request("ping"), authorization=theirs)
        assert (response.status, int(response.getheader("retry-after") or 0) > 0) == (503, True)
        assert held.site.ask("POST", "/mcp", request("ping"))[0].status == 401
        _, _, said = held.site.ask("GET", WELL_KNOWN)
        assert said["authorization_servers"] == ["http://127.0.0.1:9/realm"]


def test_a_server_that_trusts_another_issuer_takes_its_tokens_and_none_of_its_own(tmp_path: Path) -> None:
    with outside_issuer() as (issuer, key), signed_site(tmp_path, "--auth", issuer) as held:
        theirs = held.token(iss=issuer, key=key, typ="JWT")
        assert asked(held, theirs, "tools/list")[0].status == 200
        wrong = {held.token(): 401, held.token(key=key): 401, held.token(iss=issuer): 503}
        for token, status in wrong.items():  # the last one may be by a key as new as this second
            assert asked(held, token, "tools/list")[0].status == status
        _streams_end_with_their_token(held, issuer, key)


def _streams_end_with_their_token(held: Signed, issuer: str, key: jose.JoseKey) -> None:
    """An external issuer reports no revocation. HTTP+SSE is exempt: its stream is the session."""
    fresh = held.token(iss=issuer, key=key)
    id = session(held, fresh)
    ending = held.token(iss=issuer, key=key, exp=int(time.time()) - 60 + 2)  # with the leeway
    listen = request("subscriptions/listen", {"notifications": {"toolsListChanged": True}, "_meta": ENVELOPE})
    told = {"mcp_protocol_version": STATELESS, "mcp_method": "subscriptions/listen"}
    with (
        opened(held, ending, "GET", "/sse") as spared,
        opened(held, ending, "GET", "/mcp", mcp_session_id=id) as standing,
        opened(held, ending, "POST", "/mcp", listen, **told) as subscription,
    ):
        endpoint = next(events(spared))["data"]
        standing.read()
        assert b'"result"' in subscription.read()  # it ended well
        answered = held.site.ask("POST", endpoint, request("ping", id="on"), authorization=f"Bearer {fresh}")
        assert answered[0].status == 202
        assert "on" in next(events(spared))["data"]
        assert held.site.ask("POST", "/mcp", request("ping"), authorization=f"Bearer {fresh}", mcp_session_id=id)[2]


def test_a_posted_body_is_still_read_as_before(signed: Signed) -> None:
    bearer = {"authorization": signed.bearer()}
    assert signed.site.ask("POST", "/mcp", b"{", **bearer)[0].status == 400
    told = {**bearer, "content_type": "text/plain"}
    assert signed.site.ask("POST", "/mcp", b"{}", **told)[0].status == 415


# -- what takes a good token away again


def test_a_token_that_another_process_revokes_is_refused_within_seconds(signed: Signed) -> None:
    token, other = signed.token("ada", "one", jti="gone"), signed.token("ada", "one", jti="stays")
    assert asked(signed, token, "tools/list")[0].status == 200
    signed.deny("gone")
    assert eventually(lambda: asked(signed, token, "tools/list")[0].status == 401)
    assert asked(signed, other, "tools/list")[0].status == 200


def test_keys_are_rotated_or_dropped_under_a_running_server(tmp_path: Path) -> None:
    with signed_site(tmp_path) as held:
        old = held.token()
        assert asked(held, old, "tools/list")[0].status == 200
        stolen = held.key
        held.with_keys(lambda keys: keys.rotate())
        held.age_keys(ANNOUNCE_TIME + 60)
        held.key = held.with_keys(lambda keys: keys.active())
        assert held.key.kid != stolen.kid
        before = held.token(iat=int(time.time()) - 120, exp=int(time.time()) + 600, key=stolen, jti="before")
        assert eventually(lambda: asked(held, held.token(), "tools/list")[0].status == 200)
        assert asked(held, before, "tools/list")[0].status == 200
        assert asked(held, held.token(key=stolen, jti="new"), "tools/list")[0].status == 401
        held.with_keys(lambda keys: keys.rotate(drop_old=True))
        held.key = held.with_keys(lambda keys: keys.active())
        assert eventually(lambda: asked(held, before, "tools/list")[0].status == 401)
        assert asked(held, held.token(jti="last"), "tools/list")[0].status == 200
