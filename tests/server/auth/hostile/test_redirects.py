"""Attacks on redirects: codes sent elsewhere, and pages abused as open redirects."""

import html
import json
import re
import urllib.parse

import pytest

from tests.server.auth.hostile.target import BACK, LOOP, QUERY, Target, runs_nothing_foreign, shut_out, told
from tests.server.auth.sign_in_server import PageAnswer
from toolgate.server.state.rows import clients as client_rows

# Not one of them is what the client registered, though many a parser thinks so.
VARIANTS = {
    "another host": "https://evil.example/cb",
    "another path": "https://app.example/other",
    "a longer path": f"{BACK}/",
    "a path below": f"{BACK}/../evil",
    "the prefix": "https://app.example/c",
    "a longer word": f"{BACK}x",
    "the root": "https://app.example/",
    "no path": "https://app.example",
    "http": "http://app.example/cb",
    "upper scheme": "HTTPS://app.example/cb",
    "mixed scheme": "HttpS://app.example/cb",
    "upper host": "https://APP.example/cb",
    "mixed host": "https://App.Example/cb",
    "upper path": "https://app.example/CB",
    "the default port": "https://app.example:443/cb",
    "an empty port": "https://app.example:/cb",
    "port 0": "https://app.example:0/cb",
    "port 65536": "https://app.example:65536/cb",
    "port -1": "https://app.example:-1/cb",
    "a port in words": "https://app.example:http/cb",
    "the other port": "https://app.example:8444/cb",
    "userinfo": "https://app.example@evil.example/cb",
    "userinfo with a colon": "https://app.example:x@evil.example/cb",
    "empty userinfo": "https://@app.example/cb",
    "userinfo in front": "https://evil@app.example/cb",
    "encoded userinfo": "https://app.example%40evil.example/cb",
    "a suffix": "https://app.example.evil.example/cb",
    "a label before": "https://x.app.example/cb",
    "a dot at the end": "https://app.example./cb",
    "two dots at the end": "https://app.example../cb",
    "a fragment": f"{BACK}#x",
    "an empty fragment": f"{BACK}#",
    "an encoded fragment": f"{BACK}%23x",
    "a query": f"{BACK}?x=2",
    "an empty query": f"{BACK}?",
    "a query more": f"{QUERY}&y=2",
    "another query": "https://app.example/cb?x=2",
    "a code of its own": f"{BACK}?code=mine",
    "traversal": "https://app.example/x/../cb",
    "traversal at the root": "https://app.example/../cb",
    "a dot segment": "https://app.example/./cb",
    "encoded traversal": "https://app.example/%2e%2e/cb",
    "upper encoded traversal": "https://app.example/%2E%2E/cb",
    "twice encoded traversal": "https://app.example/%252e%252e/cb",
    "an encoded slash": "https://app.example%2Fcb",
    "an encoded slash in the path": "https://app.example/%2Fcb",
    "an encoded letter": "https://app.example/%63b",
    "two slashes": "https://app.example//cb",
    "three slashes": "https:///app.example/cb",
    "one slash": "https:/app.example/cb",
    "no slash": "https:app.example/cb",
    "no scheme": "//app.example/cb",
    "a path alone": "/cb",
    "a backslash": "https://app.example\\cb",
    "backslashes": "https:\\\\app.example\\cb",
    "a backslash before userinfo": "https://evil.example\\@app.example/cb",
    "an encoded backslash": "https://app.example%5c@evil.example/cb",
    "a semicolon": f"{BACK};x",
    "a space before": f" {BACK}",
    "a space after": f"{BACK} ",
    "a tab": "https://app.example/\tcb",
    "a line feed": f"{BACK}\nLocation: https://evil.example",
    "CR LF": f"{BACK}\r\nSet-Cookie: a=b",
    "encoded CR LF": f"{BACK}%0d%0aSet-Cookie:%20a=b",
    "NUL in the middle": "https://app.example\x00.evil.example/cb",
    "an encoded NUL": "https://app.example/cb%00",
    "a homograph": "https://аpp.example/cb",
    "punycode": "https://xn--pp-6kc.example/cb",
    "a wide full stop": "https://app。example/cb",
    "wide letters": "https://ａpp.example/cb",
    "a soft hyphen": "https://ap\u00adp.example/cb",
    "turned around": "https://app.example/\u202ecb",
    "javascript": "javascript:alert(1)//https://app.example/cb",
    "data": "data:text/html,<script>alert(1)</script>",
    "vbscript": "vbscript:x",
    "file": "file:///etc/passwd",
    "blob": "blob:https://app.example/cb",
    "view-source": f"view-source:{BACK}",
    "a scheme of its own": "app.example:/cb",
    "an application's": "cursor://anysphere.cursor-mcp/oauth/callback",
    "a wildcard": "https://*.example/cb",
    "the out of band one": "urn:ietf:wg:oauth:2.0:oob",
    "loopback by another name": LOOP.replace("127.0.0.1", "localhost"),
    "loopback in version 6": LOOP.replace("127.0.0.1", "[::1]"),
    "loopback's neighbour": LOOP.replace("127.0.0.1", "127.0.0.2"),
    "loopback in short": LOOP.replace("127.0.0.1", "127.1"),
    "loopback as a number": LOOP.replace("127.0.0.1", "2130706433"),
    "loopback in octal": LOOP.replace("127.0.0.1", "0177.0.0.1"),
    "loopback in hex": LOOP.replace("127.0.0.1", "0x7f.0.0.1"),
    "loopback mapped": LOOP.replace("127.0.0.1", "[::ffff:127.0.0.1]"),
    "anywhere": LOOP.replace("127.0.0.1", "0.0.0.0"),
    "loopback over https": LOOP.replace("http:", "https:"),
    "loopback with userinfo": LOOP.replace("127.0.0.1", "127.0.0.1:80@evil.example"),
    "loopback as a label": LOOP.replace("127.0.0.1", "127.0.0.1.evil.example"),
    "loopback at port 0": LOOP.replace("127.0.0.1", "127.0.0.1:0"),
    "loopback at port 65536": LOOP.replace("127.0.0.1", "127.0.0.1:65536"),
    "loopback at a padded port": LOOP.replace("127.0.0.1", "127.0.0.1:00080"),
    "loopback at another path": LOOP.replace("/back", "/back/x"),
    "loopback with a query": f"{LOOP}?x=1",
    "very long": f"{BACK}/{'a' * 5_000}",
    "empty brackets": "https://[]/cb",
    "an open bracket": "https://[app.example/cb",
}


@pytest.mark.parametrize("uri", VARIANTS.values(), ids=VARIANTS)
def test_sec_01_az_01_az_02_a_code_goes_nowhere_but_to_the_very_uri_registered(target: Target, uri: str) -> None:
    got = target.browser().get(target.asking(target.verifier(), redirect_uri=uri))
    shut_out(got, 400)
    assert "text/html" in got.headers["content-type"]
    assert "evil.example" not in got.text


@pytest.mark.parametrize("port", ["1", "80", "49152", "65535"])
def test_az_01_any_port_of_loopback_will_do(target: Target, port: str) -> None:
    got = target.browser().get(target.asking(target.verifier(), redirect_uri=f"http://127.0.0.1:{port}/back"))
    assert (got.status, got.location.partition("?")[0]) == (303, "/login")


def test_az_01_two_redirect_uris_and_none_given_is_no_guess(target: Target) -> None:
    shut_out(target.browser().get(target.asking(target.verifier(), redirect_uri=None)), 400)


def test_az_02_no_one_is_sent_to_an_unknown_client(target: Target) -> None:
    for id in ("", "x", "../x", "' OR 1=1 --", "a" * 4_000, "\x7f", "é", target.client.swapcase(), f"{target.client} "):
        shut_out(target.browser().get(target.asking(target.verifier(), client_id=id)), 400, 401)


# Never registered: what one client may be sent to is decided there.
UNTAKEN = [
    "http://app.example/cb",
    "http://127.0.0.2/cb",
    "http://127.1/cb",
    "http://0.0.0.0/cb",
    "http://localhost.evil.example/cb",
    "http://[::ffff:127.0.0.1]/cb",
    "http://10.0.0.1/cb",
    "http://169.254.169.254/latest/meta-data/",
    "https://app.example/cb#x",
    "https://app.example/cb#",
    "https://user@app.example/cb",
    "https://user:pass@app.example/cb",
    "https://*.app.example/cb",
    "https://app.example/*",
    "https://app.example/../cb",
    "https://app.example/%2e%2e/cb",
    "https://app.example\\cb",
    "https://app.example/cb\r\nx",
    "https://app.example/c b",
    "https://app.example:0/cb",
    "https://app.example:99999/cb",
    "https://[::1",
    "https://аpp.example/cb",
    "https:///cb",
    "https://",
    "javascript:alert(1)",
    "JavaScript:alert(1)",
    "java\nscript:alert(1)",
    "data:text/html,x",
    "vbscript:x",
    "file:///etc/passwd",
    "blob:https://app.example/x",
    "about:blank",
    "ftp://app.example/cb",
    "ws://app.example/cb",
    "intent://callback",
    "ms-msdt:/callback",
    "cursor://anysphere.cursor-mcp/oauth/callback/../x",
    "//app.example/cb",
    "/cb",
    "cb",
    "",
    " ",
    "\x00",
    "<script>alert(1)</script>",
    "https://app.example/'\"><script>",
]


@pytest.mark.parametrize("uri", [*UNTAKEN, None, 7, {}, ["https://app.example/cb"], True], ids=repr)
def test_rg_02_such_a_redirect_uri_is_not_registered(target: Target, uri: object) -> None:
    got = target.posted("/register", {"redirect_uris": [uri], "token_endpoint_auth_method": "none"}, **via(uri))
    shut_out(got, 400)
    assert json.loads(got.body)["error"] == "invalid_redirect_uri"
    assert "script>" not in got.text
    got = target.posted("/register", {"redirect_uris": [BACK, uri], "token_endpoint_auth_method": "none"}, **via(uri))
    assert (got.status, json.loads(got.body)["redirect_uris"]) == (201, [BACK])


def via(uri: object) -> dict[str, str]:
    """Forwarded addresses change nothing if the proxy is not trusted."""
    return {"x_forwarded_for": f"192.0.2.{len(str(uri)) % 250}"}


ONWARD = [
    "/login?next=https://evil.example",
    "/login?return_to=//evil.example",
    "/login?redirect_uri=https://evil.example",
    "/login?question=https://evil.example",
    "/login?question=//evil.example/%2f..",
    "/login?question=%0d%0aLocation:%20https://evil.example",
    "/consent?question=https://evil.example",
    "/consent?question=x&via=https://evil.example",
    "/logout?post_logout_redirect_uri=https://evil.example",
    "/logout?redirect_uri=https://evil.example&id_token_hint=x",
    "/callback?state=x&code=y&redirect_uri=https://evil.example",
    "/callback?error=x&error_description=%3Cscript%3E&error_uri=https://evil.example",
    "/account?next=https://evil.example",
    "//evil.example/login",
    "//evil.example/%2e%2e",
    "/\\evil.example",
    "/login/https://evil.example",
    "/authorize/https://evil.example",
    "/mcp//evil.example",
    "/.well-known/oauth-authorization-server//evil.example",
    "/login/..//evil.example",
]


@pytest.mark.parametrize("signed_in", [False, True], ids=["nobody", "ada"])
@pytest.mark.parametrize("path", ONWARD)
def test_sec_02_no_page_sends_a_browser_off_this_server(target: Target, path: str, signed_in: bool) -> None:
    assert target.ada is not None
    got = (target.ada if signed_in else target.browser()).get(path)
    assert got.status < 500
    assert urllib.parse.urlsplit(got.headers.get("location", "/")).netloc == ""
    assert not got.headers.get("location", "/").startswith("//")
    assert 'href="https://evil' not in got.text and 'action="https://evil' not in got.text
    assert runs_nothing_foreign(got)


FAULTS = {
    "no challenge": ({"code_challenge": None}, "invalid_request"),
    "no method": ({"code_challenge_method": None}, "invalid_request"),
    "an empty challenge": ({"code_challenge": ""}, "invalid_request"),
    "plain": ({"code_challenge_method": "plain"}, "invalid_request"),
    "s256": ({"code_challenge_method": "s256"}, "invalid_request"),
    "S512": ({"code_challenge_method": "S512"}, "invalid_request"),
    "none": ({"code_challenge_method": "none"}, "invalid_request"),
    "a space after": ({"code_challenge_method": "S256 "}, "invalid_request"),
    "neither": ({"code_challenge": None, "code_challenge_method": None}, "invalid_request"),
    "a short challenge": ({"code_challenge": "a" * 42}, "invalid_request"),
    "a long challenge": ({"code_challenge": "a" * 44}, "invalid_request"),
    "a padded challenge": ({"code_challenge": "a" * 43 + "="}, "invalid_request"),
    "a challenge with a line": ({"code_challenge": "a" * 43 + "\n"}, "invalid_request"),
    "other characters": ({"code_challenge": "a" * 42 + "+"}, "invalid_request"),
    "a challenge with NUL": ({"code_challenge": "a" * 42 + "\x00"}, "invalid_request"),
    "token": ({"response_type": "token"}, "unsupported_response_type"),
    "id_token": ({"response_type": "id_token"}, "unsupported_response_type"),
    "code token": ({"response_type": "code token"}, "unsupported_response_type"),
    "code id_token": ({"response_type": "code id_token"}, "unsupported_response_type"),
    "none at all": ({"response_type": "none"}, "unsupported_response_type"),
    "upper code": ({"response_type": "CODE"}, "unsupported_response_type"),
    "no type": ({"response_type": None}, "invalid_request"),
    "an empty type": ({"response_type": ""}, "invalid_request"),
    "a request object": ({"request": "eyJhbGciOiJub25lIn0.e30."}, "request_not_supported"),
    "a request by URL": ({"request_uri": "http://169.254.169.254/"}, "request_uri_not_supported"),
    "a foreign resource": ({"resource": "https://evil.example/mcp"}, "invalid_target"),
    "a resource below": ({"resource": "http://127.0.0.1/mcp/admin"}, "invalid_target"),
    "a resource with userinfo": ({"resource": "http://127.0.0.1@evil.example/mcp"}, "invalid_target"),
    "a resource with a fragment": ({"resource": "http://127.0.0.1/mcp#x"}, "invalid_target"),
    "no URL for a resource": ({"resource": "x"}, "invalid_target"),
    "foreign scopes": ({"scope": "admin root *"}, "invalid_scope"),
    "a star": ({"scope": "*"}, "invalid_scope"),
    "a pattern": ({"scope": "tools:*"}, "invalid_scope"),
    "an upper scope": ({"scope": "TOOLS:SHELL"}, "invalid_scope"),
}


@pytest.mark.parametrize("state", ["s-1", "a\r\nSet-Cookie: x=y", "<script>", "é✓", "a b+c&d=e#f", None], ids=repr)
@pytest.mark.parametrize(("changed", "error"), FAULTS.values(), ids=FAULTS)
def test_sec_05_sec_03_az_03_az_04_az_05_a_bad_request_redirects_no_browser_before_a_page(
    target: Target, changed: dict[str, str | None], error: str, state: str | None
) -> None:
    """The client's error is behind a link that names its host. Also checks header injection by `state` (SEC-18): it is
    only in the URL, unchanged."""
    for browser in (target.browser(), target.ada):
        assert browser is not None
        got = browser.get(target.asking(target.verifier(), state=state, **changed))
        shut_out(got, 400)
        assert "Continue to app.example" in got.text
        onward = link(got)
        assert onward.startswith(f"{BACK}?")
        said = dict(urllib.parse.parse_qsl(urllib.parse.urlsplit(onward).query))
        assert (said["error"], said["iss"], said.get("state")) == (error, target.url, state)
        assert "code" not in said


def test_prompt_none_redirects_no_browser_before_a_page_either(target: Target) -> None:
    got = target.browser().get(target.asking(target.verifier(), prompt="none", scope="x"))
    shut_out(got, 400)
    assert target.browser().get(target.asking(target.verifier(), prompt="none")).location.startswith("/login?")


def test_a_bad_request_of_a_client_that_the_operator_added_is_told_to_it_at_once(target: Target) -> None:
    metadata = {
        "client_name": "Fern",
        "redirect_uris": [BACK],
        "token_endpoint_auth_method": "none",
        "grant_types": ["authorization_code"],
    }
    row = {"kind": client_rows.CONFIGURED, "metadata": json.dumps(metadata), "made_at": 1.0}
    target.signed.with_store(
        lambda store: store.transact(lambda connection: client_rows.save_client(connection, "operators-own", **row))
    )
    got = target.browser().get(target.asking(target.verifier(), client_id="operators-own", response_type="token"))
    assert got.status == 303 and got.location.startswith(f"{BACK}?")
    assert told(got)["error"] == "unsupported_response_type"


def link(got: PageAnswer) -> str:
    """Return the target of a page's one button."""
    found = re.findall(r'<a class="button" href="([^"]*)"', got.text)
    assert len(found) == 1, got.text
    return html.unescape(found[0])


def twice(target: Target, name: str, value: str) -> str:
    return target.asking(target.verifier()) + "&" + urllib.parse.urlencode({name: value})


@pytest.mark.parametrize("first", [False, True], ids=["last", "first"])
@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("client_id", "x"),
        ("redirect_uri", "https://evil.example"),
        ("response_type", "token"),
        ("scope", "tools:shell"),
        ("state", "other"),
        ("code_challenge", "a" * 43),
        ("code_challenge_method", "plain"),
        ("code_challenge_method", "S256"),
        ("prompt", "none"),
    ],
)
def test_az_04_sec_18_what_comes_twice_is_refused_whichever_counts(
    target: Target, name: str, value: str, first: bool
) -> None:
    once = target.asking(target.verifier(), prompt="consent")
    path, _, query = once.partition("?")
    more = urllib.parse.urlencode({name: value})
    got = target.browser().get(f"{path}?{more}&{query}" if first else f"{once}&{more}")
    shut_out(got, 400)
    if "Continue to" in got.text:
        assert link(got).startswith(f"{BACK}?error=invalid_request&")
    assert "evil.example" not in str(got.headers) + got.text


ODD_QUERIES = [
    "",
    "&",
    "=",
    "%",
    "%00",
    "%ff%fe",
    "client_id=%ff",
    "client_id=%00",
    "a=" * 40,
    "&".join(f"p{n}=1" for n in range(500)),
    "x=" + "y" * 60_000,
    "client_id[]=a",
    "client_id=a;redirect_uri=b",
    "client_id=%C0%AF",
    "client_id=%ED%A0%80",
    "?client_id=a",
]


@pytest.mark.parametrize("query", ODD_QUERIES, ids=range(len(ODD_QUERIES)))
@pytest.mark.parametrize(
    "path", ["/authorize", "/authorize/", "/login", "/consent", "/callback", "/account", "/logout"]
)
def test_sec_18_a_query_that_is_none_is_no_fault_of_ours(target: Target, path: str, query: str) -> None:
    got = target.browser().get(f"{path}?{query}")
    assert got.status < 500
    if path.startswith("/authorize"):
        shut_out(got)
