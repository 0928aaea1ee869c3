"""Attacks on the protected resource: forged tokens, tokens in wrong places, foreign Hosts and Origins on every route,
other people's sessions, and disguised calls."""

import contextlib
import hashlib
import hmac
import json
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from joserfc import jws

from tests.clients.raw_client import STATELESS
from tests.server.auth.forged_tokens import packed
from tests.server.auth.hostile.target import BACK, FORM, Target
from tests.server.auth.minted_tokens import ENVELOPE, asked, challenge, request, session
from toolgate.server.auth.tokens import jose
from toolgate.server.auth.tokens.jose import JoseKey

OTHER = jose.generate_key()


def forged(target: Target, header: dict[str, Any], claims: Any = None, signer: JoseKey | None = None) -> str:
    """Return a validly signed token with any header."""
    key = signer or target.signed.key
    body = f"{packed(header)}.{packed(target.signed.claims() if claims is None else claims)}"
    signature = jws.JWSRegistry(algorithms=["ES256"]).get_alg("ES256").sign(body.encode(), key.material)
    return f"{body}.{packed(signature)}"


def unsigned(target: Target, alg: str) -> str:
    return f"{packed({'typ': 'at+jwt', 'alg': alg, 'kid': target.signed.key.kid})}.{packed(target.signed.claims())}."


def hmac_with(target: Target, secret: bytes, alg: str = "HS256") -> str:
    body = f"{packed({'typ': 'at+jwt', 'alg': alg, 'kid': target.signed.key.kid})}.{packed(target.signed.claims())}"
    return f"{body}.{packed(hmac.new(secret, body.encode(), hashlib.sha256).digest())}"


def header(target: Target, **more: Any) -> dict[str, Any]:
    return {"typ": "at+jwt", "alg": "ES256", "kid": target.signed.key.kid, **more}


def told_by(**more: Any) -> Callable[[Target], str]:
    return lambda target: forged(target, header(target, **more))


def claiming(**other: Any) -> Callable[[Target], str]:
    return lambda target: target.signed.token(**other)


def change_claims(target: Target, **other: Any) -> str:
    before, _, signature = target.signed.token().split(".")
    return f"{before}.{packed({**target.signed.claims(), **other})}.{signature}"


def cut(work: Callable[[list[str]], list[str]]) -> Callable[[Target], str]:
    return lambda target: ".".join(work(target.signed.token().split(".")))


NOW = int(time.time())
FORGED: dict[str, Callable[[Target], str]] = {
    **{f"alg {alg}": partial(unsigned, alg=alg) for alg in ("none", "None", "NONE", "nOnE", "")},
    **{
        f"alg {alg}, signed": told_by(alg=alg)
        for alg in ("none", "HS256", "RS256", "PS256", "ES384", "ES512", "ES256K", "EdDSA", "dir", "RSA1_5", "es256")
    },
    "alg is a list": told_by(alg=["ES256"]),
    "alg is null": told_by(alg=None),
    "HS256 with the public key": lambda target: hmac_with(
        target, json.dumps(target.signed.key.to_public_jwk()).encode()
    ),
    "HS256 with the sorted public key": lambda target: hmac_with(
        target, json.dumps(target.signed.key.to_public_jwk(), sort_keys=True, separators=(",", ":")).encode()
    ),
    "HS256 with x": lambda target: hmac_with(target, target.signed.key.to_public_jwk()["x"].encode()),
    "HS256 with kid": lambda target: hmac_with(target, target.signed.key.kid.encode()),
    "HS256 with nothing": lambda target: hmac_with(target, b""),
    "its own key": lambda target: forged(target, header(target, jwk=OTHER.to_public_jwk()), signer=OTHER),
    "its own key beside ours": lambda target: forged(target, header(target, jwk=target.signed.key.to_public_jwk())),
    "its own key's id": lambda target: forged(target, header(target, kid=OTHER.kid), signer=OTHER),
    "its own key under our id": lambda target: forged(target, header(target), signer=OTHER),
    "jku": told_by(jku="https://evil.example/jwks"),
    "jku at loopback": told_by(jku="http://127.0.0.1:1/jwks"),
    "jku of ours": lambda target: forged(target, header(target, jku=f"{target.url}/jwks")),
    "x5u": told_by(x5u="https://evil.example/x"),
    "x5c": told_by(x5c=["MIIB"]),
    "crit": told_by(crit=["exp"], exp=1),
    "empty crit": told_by(crit=[]),
    "b64": told_by(b64=False, crit=["b64"]),
    "zip": told_by(zip="DEF"),
    "enc": told_by(enc="A128GCM"),
    "cty": lambda target: forged(target, header(target, cty="JWT"), target.signed.token().encode()),
    "kid a path": told_by(kid="../../../../dev/null"),
    "kid a URL": told_by(kid="https://evil.example/key"),
    "kid SQL": told_by(kid="x' UNION SELECT 'a"),
    "kid NUL": told_by(kid="\0"),
    "kid a command": told_by(kid="|id"),
    "kid a list": told_by(kid=[1]),
    "kid a number": told_by(kid=0),
    "kid null": told_by(kid=None),
    "kid long": told_by(kid="k" * 5_000),
    "no kid": lambda target: forged(target, {"typ": "at+jwt", "alg": "ES256"}),
    **{
        f"typ {typ!r}": told_by(typ=typ)
        for typ in ("JWT", "jwt", "id_token", "rt+jwt", "logout+jwt", "dpop+jwt", "", None, 7, ["at+jwt"])
    },
    "typ of an ID-JAG": told_by(typ="oauth-id-jag+jwt"),
    "typ of a client's proof": told_by(typ="client-authentication+jwt"),
    "no typ": lambda target: forged(target, {"alg": "ES256", "kid": target.signed.key.kid}),
    "an ID token": lambda target: target.signed.token(
        typ="JWT", aud="client", nonce="n", auth_time=NOW, scope=None, client_id=None
    ),
    "of another server's resource": claiming(aud="https://other.example/mcp"),
    "of a neighbour's port": claiming(aud="http://127.0.0.1:1/mcp"),
    "for a longer path": lambda target: target.signed.token(aud=f"{target.url}/mcp/x"),
    "for a client": claiming(aud="client"),
    "for the issuer": lambda target: target.signed.token(aud=target.url),
    "for the token endpoint": lambda target: target.signed.token(aud=f"{target.url}/token"),
    "for all": claiming(aud="*"),
    "for nobody": claiming(aud=None),
    "for an empty list": claiming(aud=[]),
    "for us and another": lambda target: target.signed.token(aud=[f"{target.url}/mcp", "https://other.example"]),
    "of another issuer": claiming(iss="https://evil.example"),
    "of an issuer with a slash": lambda target: target.signed.token(iss=f"{target.url}/"),
    "of an upper issuer": lambda target: target.signed.token(iss=target.url.upper()),
    "of no issuer": claiming(iss=None),
    "of a list of issuers": lambda target: target.signed.token(iss=[target.url]),
    "expired": claiming(exp=NOW - 3_600),
    "expired in 1970": claiming(exp=0),
    "without an end": claiming(exp=None),
    "with an end in words": claiming(exp="never"),
    "with an end beyond all": claiming(exp=1e300),
    "with a true end": claiming(exp=True),
    "not yet good": claiming(nbf=NOW + 3_600),
    "from the future": claiming(iat=NOW + 3_600),
    "of nobody": claiming(subject=None),
    "a list": lambda target: forged(target, header(target), []),
    "a string": lambda target: forged(target, header(target), "x"),
    "deep": lambda target: forged(target, header(target), b"[" * 4_000),
    "a deep header": lambda target: f"{packed(b'[' * 4_000)}.{packed(target.signed.claims())}.AAAA",
    "doubled claims": lambda target: forged(target, header(target), b'{"sub":"a","sub":"b"}'),
    "nested": lambda target: f"{packed(header(target))}.{packed(target.signed.token().encode())}.AAAA",
    "without its signature": cut(lambda parts: [parts[0], parts[1], ""]),
    "two parts": cut(lambda parts: parts[:2]),
    "one part": cut(lambda parts: parts[:1]),
    "four parts": cut(lambda parts: [*parts, parts[2]]),
    "five parts": cut(lambda parts: [*parts, *parts[:2]]),
    "a short signature": cut(lambda parts: [*parts[:2], parts[2][:-4]]),
    "a long signature": cut(lambda parts: [*parts[:2], parts[2] + "AAAA"]),
    "a signature of zeros": cut(lambda parts: [*parts[:2], packed(bytes(64))]),
    "a changed signature": cut(lambda parts: [*parts[:2], ("B" if parts[2][0] == "A" else "A") + parts[2][1:]]),
    "padding": cut(lambda parts: [*parts[:2], parts[2] + "=="]),
    "a dot before": cut(lambda parts: ["", *parts]),
    "oversize": cut(lambda parts: [parts[0], parts[1] + "A" * 20_000, parts[2]]),
    "changed claims": lambda target: change_claims(target, sub="root"),
    "dots": lambda _target: "..",
    "a word": lambda _target: "null",
    "SQL": lambda _target: "a.b.c--",
}


@pytest.mark.parametrize("path", ["/mcp", "/sse", "/messages?session_id=x"])
@pytest.mark.parametrize("make", FORGED.values(), ids=FORGED)
def test_sec_13_sec_07_sec_15_pr_09_no_forged_token_opens_a_door(
    target: Target, make: Callable[[Target], str], path: str
) -> None:
    token = make(target)
    method = "GET" if path == "/sse" else "POST"
    body = None if method == "GET" else request("initialize", {})
    with contextlib.closing(target.signed.site.connect()) as connection:
        told = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
        connection.request(method, path, None if body is None else json.dumps(body), told)
        response = connection.getresponse()
        assert response.status == 401  # before anything is read: that of a stream would not end
        content = response.read()
    assert challenge(response)["error"] == "invalid_token"
    assert len(token) < 20 or token[-20:].encode() not in content + str(response.headers).encode()


def test_a_good_token_opens_them(target: Target) -> None:
    assert target.works(target.token())
    assert target.works(forged(target, header(target)))


# -- tokens where none belongs


@pytest.mark.parametrize("path", ["/mcp", "/mcp/", "/messages"])
@pytest.mark.parametrize(
    "name", ["access_token", "ACCESS_TOKEN", "access%5Ftoken", "%61ccess_token", "+access_token", "token", "bearer"]
)
def test_pr_08_a_token_in_a_url_opens_nothing(target: Target, path: str, name: str) -> None:
    token = target.token()
    response, content, _ = target.signed.site.ask("POST", f"{path}?{name}={token}", request("tools/list"))
    assert response.status == 401
    assert token.encode() not in content


def test_pr_08_a_token_in_a_cookie_a_body_or_another_header_opens_nothing(target: Target) -> None:
    token = target.token()
    for headers in (
        {"cookie": f"access_token={token}; Authorization=Bearer {token}"},
        {"x_authorization": f"Bearer {token}"},
        {"proxy_authorization": f"Bearer {token}"},
        {"x_forwarded_authorization": f"Bearer {token}"},
        {"x_api_key": token},
        {"x_forwarded_user": "ada", "x_remote_user": "ada", "remote_user": "ada"},
        {"authorization": token},
        {"authorization": f"Basic {token}"},
        {"authorization": f"Token {token}"},
        {"authorization": f"DPoP {token}"},
        {"authorization": f"Bearer, {token}"},
        {"authorization": f'Bearer token="{token}"'},
        {"authorization": f"Bearer\t{token}"},
        {"authorization": f"Bearer x, Bearer {token}"},
    ):
        assert target.signed.site.ask("POST", "/mcp", request("ping"), **headers)[0].status == 401, headers
    body = f"access_token={token}".encode()
    assert target.signed.site.ask("POST", "/mcp", body, content_type=FORM)[0].status == 401
    page = target.browser()
    assert target.ada is not None
    page.cookies = dict(target.ada.cookies)  # who is signed in at the pages is nobody at the doors
    assert page.ask("POST", "/mcp", json.dumps(request("ping")).encode(), content_type="application/json").status == 401


@pytest.mark.parametrize("path", ["/mcp", "/sse", "/messages"])
def test_two_authorizations_are_none(target: Target, path: str) -> None:
    token = target.token()
    for first, second in ((token, "x"), ("x", token)):
        status, _ = target.raw(
            f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1:{target.port}\r\nAuthorization: Bearer {first}\r\n"
            f"Authorization: Bearer {second}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n".encode()
        )
        assert status in (400, 401)


# -- Host, Origin, proxies

ROUTES = [
    ("POST", "/mcp"),
    ("POST", "/mcp/"),
    ("GET", "/sse"),
    ("POST", "/messages?session_id=x"),
    ("GET", "/authorize?client_id=x"),
    ("GET", "/login"),
    ("POST", "/login"),
    ("GET", "/consent?question=x"),
    ("POST", "/consent"),
    ("GET", "/callback?state=x"),
    ("GET", "/account"),
    ("POST", "/account"),
    ("POST", "/logout"),
    ("POST", "/token"),
    ("POST", "/register"),
    ("POST", "/revoke"),
    ("POST", "/introspect"),
    ("GET", "/jwks"),
    ("GET", "/.well-known/oauth-authorization-server"),
    ("GET", "/.well-known/openid-configuration"),
    ("GET", "/.well-known/oauth-protected-resource"),
    ("GET", "/.well-known/oauth-protected-resource/mcp"),
]
HOSTS = [
    "evil.example",
    "127.0.0.1.evil.example",
    "127.0.0.2",
    "evil.example:80",
    "localhost.evil.example",
    "",
    "a@127.0.0.1",
]
ORIGINS = [
    "https://evil.example",
    "null",
    "http://127.0.0.1.evil.example",
    "http://localhost@evil.example",
    "file://",
    "*",
]
OPEN = ("/token", "/register", "/revoke", "/introspect", "/jwks", "/.well-known/")


@pytest.mark.parametrize("host", HOSTS)
@pytest.mark.parametrize(("method", "path"), ROUTES)
def test_mcp_06_pr_13_a_foreign_host_is_refused_on_every_route(
    target: Target, method: str, path: str, host: str
) -> None:
    status, text = target.raw(
        f"{method} {path} HTTP/1.1\r\nHost: {host}\r\nAuthorization: Bearer {target.token()}\r\n"
        "Content-Length: 0\r\nConnection: close\r\n\r\n".encode()
    )
    assert status in (400, 421)
    assert b"evil" not in text


@pytest.mark.parametrize("origin", ORIGINS)
@pytest.mark.parametrize(("method", "path"), ROUTES)
def test_mcp_06_pr_13_a_foreign_origin_is_refused_wherever_cookies_or_tokens_count(
    target: Target, method: str, path: str, origin: str
) -> None:
    """Routes open to all origins use no cookie, and say so (`*`, never with credentials)."""
    got = target.browser().ask(method, path, b"" if method == "POST" else None, origin=origin)
    assert "access-control-allow-credentials" not in got.headers
    if path.startswith(OPEN):
        assert got.headers["access-control-allow-origin"] == "*"
        assert got.status in (200, 400, 401)
    else:
        assert got.status == 403
        assert "access-control-allow-origin" not in got.headers


FORWARDED = [
    {"x_forwarded_host": "evil.example"},
    {"x_forwarded_host": "evil.example", "x_forwarded_proto": "https", "x_forwarded_port": "443"},
    {"x_forwarded_prefix": "/evil"},
    {"x_forwarded_server": "evil.example"},
    {"x_original_url": "/evil"},
    {"x_rewrite_url": "/evil"},
    {"x_original_host": "evil.example"},
    {"x_host": "evil.example"},
    {"forwarded": "for=evil.example;host=evil.example;proto=https"},
    {"x_forwarded_for": "evil.example, 127.0.0.1"},
    {"x_http_method_override": "DELETE"},
    {"x_script_name": "/evil"},
]


@pytest.mark.parametrize("headers", FORWARDED, ids=str)
def test_forwarded_headers_change_no_url_of_the_server(target: Target, headers: dict[str, str]) -> None:
    browser = target.browser()
    for path in ("/.well-known/oauth-authorization-server", "/.well-known/oauth-protected-resource/mcp", "/login"):
        assert browser.get(path, **headers).body.count(b"evil") == 0
    response, _, _ = target.signed.site.ask("POST", "/mcp", request("ping"), **headers)
    assert response.status == 401
    assert challenge(response)["resource_metadata"].startswith(target.url)
    asked = browser.get(target.asking(target.verifier()), **headers)
    assert asked.location.startswith("/login")


# -- other people's things


def test_mcp_05_pr_14_pr_15_no_session_of_adas_serves_another(target: Target) -> None:
    ada = target.token("ada", "one")
    id = session(target.signed, ada)
    site = target.signed.site
    for thief in (target.token("bob", "one"), target.token("ada", "two"), target.token("bob", "two")):
        told = {"authorization": f"Bearer {thief}"}
        for method, body in (("POST", request("tools/list")), ("GET", None), ("DELETE", None)):
            for key in (id, f" {id}", f"{id}, x"):
                got = site.ask(
                    method, "/mcp", body, accept="text/event-stream, application/json", mcp_session_id=key, **told
                )
                assert got[0].status in (400, 404)
        for key in (id, id.upper(), "x", "", "../x", "%00"):
            assert site.ask("POST", f"/messages?session_id={key}", request("ping"), **told)[0].status in (400, 404)
    for method in ("POST", "GET", "DELETE"):  # the id alone says nothing about who comes
        assert site.ask(method, "/mcp", None, mcp_session_id=id)[0].status == 401
    assert (
        site.ask("POST", "/mcp", request("tools/list"), authorization=f"Bearer {ada}", mcp_session_id=id)[0].status
        == 200
    )


# -- calls that hide what they are

SHELL = {"name": "Bash", "arguments": {"command": "echo let-in"}}
READING = ("tools:read",)


def sent(target: Target, body: Any, **headers: str) -> tuple[int, bytes]:
    token = target.token("eve", "one", READING)
    response, content, _ = target.signed.site.ask("POST", "/mcp", body, authorization=f"Bearer {token}", **headers)
    return response.status, content


def stateless(params: Any, method: str = "tools/call") -> dict[str, Any]:
    return request(method, {**params, "_meta": ENVELOPE})


HEADED = {"mcp_protocol_version": STATELESS, "mcp_method": "tools/call"}
HIDDEN: dict[str, tuple[Any, dict[str, str]]] = {
    "plainly": (stateless(SHELL), {**HEADED, "mcp_name": "Bash"}),
    "under another name": (stateless(SHELL), {**HEADED, "mcp_name": "ListBgTasks"}),
    "under no name": (stateless(SHELL), HEADED),
    "under an encoded name": (stateless(SHELL), {**HEADED, "mcp_name": "=?base64?QmFzaA==?="}),
    "under an encoded other name": (stateless(SHELL), {**HEADED, "mcp_name": "=?base64?TGlzdEJnVGFza3M=?="}),
    "under another method": (stateless(SHELL), {**HEADED, "mcp_method": "tools/list", "mcp_name": "Bash"}),
    "under no method": (stateless(SHELL), {"mcp_protocol_version": STATELESS}),
    "under an older revision": (stateless(SHELL), {"mcp_protocol_version": "2025-11-25"}),
    "under no revision": (stateless(SHELL), {}),
    "by an old message": (request("tools/call", SHELL), HEADED),
    "in a batch": ([stateless({}, "tools/list"), stateless(SHELL)], HEADED),
    "in a batch of one": ([stateless(SHELL)], {**HEADED, "mcp_name": "Bash"}),
    "by another name for it": (stateless({**SHELL, "name": "bash"}), {**HEADED, "mcp_name": "bash"}),
    "by a name with a space": (stateless({**SHELL, "name": "Bash "}), {**HEADED, "mcp_name": "Bash "}),
    "by a name that is a list": (stateless({**SHELL, "name": ["Bash"]}), HEADED),
    "with the name twice": (
        json.dumps(stateless(SHELL)).replace('"name": "Bash"', '"name": "ListBgTasks", "name": "Bash"', 1).encode(),
        {**HEADED, "mcp_name": "ListBgTasks"},
    ),
    "with the method twice": (
        json.dumps(stateless(SHELL)).replace('"method": ', '"method": "tools/list", "method": ', 1).encode(),
        {**HEADED, "mcp_method": "tools/list", "mcp_name": "Bash"},
    ),
    "in the background": (
        stateless({"name": "BackgroundBash", "arguments": {"command": "echo let-in"}}),
        {**HEADED, "mcp_name": "BackgroundBash"},
    ),
}


@pytest.mark.parametrize(("body", "headers"), HIDDEN.values(), ids=HIDDEN)
def test_mcp_10_mcp_11_pr_11_a_read_only_token_runs_no_shell_in_any_request(
    target: Target, body: Any, headers: dict[str, str]
) -> None:
    status, content = sent(target, body, **headers)
    assert b"let-in" not in content
    assert 400 <= status < 500 or b'"error"' in content


@pytest.mark.parametrize("revision", ["2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25"])
def test_mcp_11_a_batch_or_a_session_lends_no_scope(target: Target, revision: str) -> None:
    token = target.token("eve", revision, READING)
    id = session(target.signed, token, revision)
    told = {"authorization": f"Bearer {token}", "mcp_session_id": id}
    call, ping = request("tools/call", SHELL, 2), request("ping", {}, 3)
    for body in (call, [ping, call], [call, ping], [[call]], [call], [ping] * 50 + [call]):
        response, content, _ = target.signed.site.ask("POST", "/mcp", body, **told)
        assert b"let-in" not in content
        assert response.status in (400, 403) or (body == [[call]] and b'"error"' in content), (body, content)
        if response.status == 403:  # MCP-07: what is lacking, and no more
            assert challenge(response)["scope"] == "tools:shell"


def test_mcp_07_no_challenge_asks_for_everything_there_is(target: Target) -> None:
    response, _, _ = asked(target.signed, target.token("eve", "one", READING), "tools/call", SHELL)
    assert (response.status, challenge(response)["scope"]) == (403, "tools:shell")
    assert "*" not in challenge(response)["scope"]


ENCODED = [
    "/%6dcp",
    "/mcp%2f",
    "/mcp;x",
    "/mcp//",
    "//mcp",
    "/./mcp",
    "/x/../mcp",
    "/MCP",
    "/mcp%00",
    "/mcp/../mcp",
    "/mcp?",
    "/mcp#x",
]


@pytest.mark.parametrize("path", ENCODED)
def test_pr_01_no_spelling_of_a_path_comes_around_the_gate(target: Target, path: str) -> None:
    body = json.dumps(request("initialize", {})).encode()
    status, content = target.raw(
        f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1:{target.port}\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n".encode()
        + body
    )
    assert status in (400, 401, 404)
    assert b"protocolVersion" not in content


SMUGGLED = {
    "two lengths": "Content-Length: 0\r\nContent-Length: 10",
    "a length and chunks": "Content-Length: 5\r\nTransfer-Encoding: chunked",
    "a negative length": "Content-Length: -1",
    "a length in words": "Content-Length: ten",
    "a header with NUL": "X-A: a\0b",
    "a folded header": "X-A: a\r\n Authorization: Bearer x",
    "no colon": "X-A",
    "a space before the colon": "Authorization : Bearer x",
    "a huge header": "X-A: " + "a" * 100_000,
}


@pytest.mark.parametrize("line", SMUGGLED.values(), ids=SMUGGLED)
def test_an_ambiguous_request_is_refused(target: Target, line: str) -> None:
    head = f"POST /mcp HTTP/1.1\r\nHost: 127.0.0.1:{target.port}\r\nConnection: close\r\n{line}\r\n\r\n"
    status, _ = target.raw(head.encode() + b"0\r\n\r\n")
    assert status == 0 or 400 <= status < 500
    assert BACK not in target.log()
