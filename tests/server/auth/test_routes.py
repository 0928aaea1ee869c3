"""The sign-in routes, used by a program that keeps to no rules."""

import asyncio
import base64
import concurrent.futures
import contextlib
import html
import http.client
import json
import re
import urllib.parse
from collections.abc import Iterator
from pathlib import Path

import pytest
from starlette.responses import Response

from tests.clients.raw_client import PATIENCE
from tests.server.auth.authorization_in_process import VERIFIER, Clock
from tests.server.auth.sign_in_server import DOCUMENT, PASSWORD, Browser, PageAnswer, SignInServer, sign_in_server
from toolgate.server.base.principals.scopes import SERVED
from toolgate.transports.web.consent import describe_scope
from toolgate.transports.web.http import Cookies, redirect
from toolgate.transports.web.sign_in_context import AnsweredQuestions

HTTPS = "https://gate.example"
PAGES = ("/login", "/consent?question=x", "/account", "/logout", "/callback", "/authorize?client_id=x")
DOCUMENTS = (
    "/.well-known/oauth-authorization-server",
    "/.well-known/openid-configuration",
    "/.well-known/oauth-authorization-server/mcp",
    "/.well-known/openid-configuration/sse",
    "/mcp/.well-known/openid-configuration",
    "/sse/.well-known/oauth-authorization-server",
)


@pytest.fixture
def secure(tmp_path: Path) -> Iterator[SignInServer]:
    """A server behind a proxy that ends TLS."""
    with sign_in_server(tmp_path, public_url=HTTPS) as made:
        made.add()
        yield made


def ask_signed_in(made: SignInServer, **asked: str) -> tuple[Browser, PageAnswer]:
    browser = made.browser()
    page = browser.sign_in(browser.get(made.asking(**asked)).location)
    assert page.status == 303
    return browser, browser.get(page.location)


def answer(page: PageAnswer, *scopes: str, decision: str = "approve", **changed: str) -> list[tuple[str, str]]:
    fields = {
        "csrf": page.field("csrf"),
        "question": page.field("question"),
        "via": "",
        "decision": decision,
        **changed,
    }
    return [*fields.items(), *(("scope", scope) for scope in scopes)]


# -- documents and endpoints for programs


@pytest.mark.parametrize("slash", ["", "/"])
@pytest.mark.parametrize("path", [*DOCUMENTS, "/jwks"])
def test_pr_07_as_01_documents_are_public_and_never_redirected(path: str, slash: str, server: SignInServer) -> None:
    got = server.browser(origin="https://inspector.example").get(path + slash)
    assert got.status == 200
    assert got.headers["content-type"] == "application/json"
    assert got.headers["access-control-allow-origin"] == "*"
    age = re.fullmatch(r"public, max-age=(\d+)", got.headers["cache-control"])
    assert age is not None
    assert 0 < int(age[1]) <= 3600
    assert "null" not in got.text


def test_as_02_all_names_of_the_metadata_are_of_one_document(server: SignInServer) -> None:
    told = {server.browser().get(path).body for path in DOCUMENTS}
    assert len(told) == 1
    assert json.loads(told.pop())["issuer"] == server.url


def test_pr_07_documents_answer_head_and_options(server: SignInServer) -> None:
    browser = server.browser(origin="https://inspector.example")
    head = browser.ask("HEAD", DOCUMENTS[0])
    assert (head.status, head.body) == (200, b"")
    assert int(head.headers["content-length"]) > 2
    options = browser.ask("OPTIONS", DOCUMENTS[0])
    assert (options.status, options.headers["access-control-allow-methods"]) == (204, "GET, HEAD, OPTIONS")
    assert browser.ask("POST", DOCUMENTS[0]).status == 405
    preflight = browser.ask("OPTIONS", "/token", access_control_request_method="POST")
    assert (preflight.status, preflight.headers["access-control-allow-methods"]) == (204, "OPTIONS, POST")


def test_documents_are_found_with_and_behind_the_path_of_the_public_url(tmp_path: Path) -> None:
    with sign_in_server(tmp_path, public_url=f"{HTTPS}/tools") as made:
        browser = made.browser(host="gate.example")
        for path in (
            "/.well-known/oauth-authorization-server",
            "/.well-known/oauth-authorization-server/tools",
            "/.well-known/openid-configuration/tools/mcp",
            "/tools/.well-known/openid-configuration",  # as a proxy passes it that takes nothing off
            "/tools/mcp/.well-known/openid-configuration",
        ):
            assert browser.get(path, origin="https://elsewhere.example").status == 200, path
        page = browser.get("/tools/login")
        assert 'action="/tools/login"' in page.text
        assert browser.get(re.findall(r'href="([^"]+css[^"]*)"', page.text)[0]).status == 200
        assert browser.get("/account").location == "/tools/login"


@pytest.mark.parametrize("path", ["/token", "/revoke", "/introspect"])
def test_sec_18_tk_01_programs_send_one_form_and_nothing_else(path: str, server: SignInServer) -> None:
    browser = server.browser()
    form = b"grant_type=authorization_code&code=x"
    kind = "application/x-www-form-urlencoded"
    for body, content_type, where in (
        (form, "multipart/form-data; boundary=x", path),
        (form, "application/json", path),
        (form, "", path),
        (form, kind, path + "?client_secret=s"),
        (b"code=a&code=b", kind, path),
        (b"code=a&code=", kind, path),
        (b"code=%00", kind, path),
        (b"code=%ff", kind, path),
        (b"code=\xff", kind, path),
        (b"&".join(b"a%d=1" % n for n in range(200)), kind, path),
    ):
        got = browser.ask("POST", where, body, content_type=content_type)
        assert (got.status, json.loads(got.body)["error"]) == (400, "invalid_request"), (body[:30], content_type)
        assert (got.headers["cache-control"], got.headers["pragma"]) == ("no-store", "no-cache")
    large = browser.ask("POST", path, b"code=" + b"a" * 70_000, content_type=kind)
    assert large.status == 413
    assert browser.get(path).headers["allow"] == "OPTIONS, POST"


def test_tk_01_a_form_arrives_with_its_authorization_and_without_what_is_empty(server: SignInServer) -> None:
    registered = {"redirect_uris": ["https://app.example/back"], "token_endpoint_auth_method": "client_secret_basic"}
    browser = server.browser()
    made = browser.ask("POST", "/register/", json.dumps(registered).encode(), content_type="application/json")
    client = json.loads(made.body)
    assert made.status == 201
    asked = {"client": client["client_id"], "uri": "https://app.example/back"}
    person, page = ask_signed_in(server, **asked, resource=f"{server.url}/mcp")
    location = person.post("/consent", answer(page, "tools:read")).location
    form = {
        "grant_type": "authorization_code",
        "code": urllib.parse.parse_qs(location)["https://app.example/back?code"][0],
        "redirect_uri": "https://app.example/back",
        "code_verifier": VERIFIER,
        "scope": "",
    }
    pair = base64.b64encode(f"{client['client_id']}:{client['client_secret']}".encode()).decode()
    fields = [*form.items(), ("resource", f"{server.url}/mcp"), ("resource", f"{server.url}/mcp/")]
    kind = "application/x-www-form-urlencoded; charset=UTF-8"
    assert browser.post("/token/", fields, content_type=kind).status == 401
    got = browser.post("/token/", fields, authorization=f"Basic {pair}", content_type=kind)
    assert (got.status, got.headers["cache-control"]) == (200, "no-store")
    assert json.loads(got.body)["scope"] == "tools:read"


def test_rg_05_a_registration_is_json_of_64_kib_at_most(server: SignInServer) -> None:
    browser = server.browser()
    for body, kind, status in (
        (b"{}", "text/plain", 400),
        (b"{", "application/json", 400),
        (b"[" * 60_000, "application/json", 400),
        (b"\xff", "application/json", 400),
        (b'"' + b"a" * 70_000 + b'"', "application/json", 413),
    ):
        assert browser.ask("POST", "/register", body, content_type=kind).status == status
    good = b'{"redirect_uris": ["https://app.example/back"], "token_endpoint_auth_method": "none"}'
    made = browser.ask("POST", "/register", good, content_type="application/json; charset=utf-8")
    assert made.status == 201
    assert browser.get(server.asking(json.loads(made.body)["client_id"], "https://app.example/back")).status == 303


def test_mcp_13_a_fault_is_told_under_a_reference_and_nothing_else(
    server: SignInServer, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken() -> None:
        raise RuntimeError("secret at /home/somebody")

    monkeypatch.setattr(server.authorization, "metadata", broken)
    got = server.browser().get(DOCUMENTS[0])
    assert got.status == 500
    assert "somebody" not in got.text
    reference = re.search(r"under ([0-9a-f]{8})", got.text)
    assert reference is not None
    assert reference[1] in caplog.text


# -- pages


@pytest.mark.parametrize("slash", ["", "/"])
@pytest.mark.parametrize("path", PAGES)
def test_sec_10_az_10_no_page_may_be_framed_or_cached(path: str, slash: str, server: SignInServer) -> None:
    browser = server.browser()
    got = browser.get(path.replace("?", slash + "?") if "?" in path else path + slash)
    headers = got.headers
    assert headers["cache-control"] == "no-store"
    assert headers["x-content-type-options"] == "nosniff"
    if got.status == 303:
        assert got.location.startswith("/")
        return
    policy = headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "frame-ancestors 'none'" in policy
    assert "form-action" not in policy
    assert headers["x-frame-options"] == "DENY"
    assert headers["referrer-policy"] == "same-origin"
    scripts = re.findall(r"<script[^>]*>", got.text)
    assert len(scripts) == (path == "/login") and all('src="/pairing.js' in script for script in scripts)
    assert "http://" not in got.text.replace(server.url, "")
    assert '<html lang="en">' in got.text


def test_az_10_no_method_but_those_of_the_page(server: SignInServer) -> None:
    browser = server.browser()
    for method, path in (("PUT", "/login"), ("HEAD", "/authorize"), ("POST", "/callback"), ("DELETE", "/account")):
        assert browser.ask(method, path).status == 405


def test_az_10_pages_answer_head_without_a_body(server: SignInServer) -> None:
    got = server.browser().ask("HEAD", "/login")
    assert (got.status, got.body, int(got.headers["content-length"]) > 200) == (200, b"", True)


def test_cookies_that_came_in_two_headers_are_one_list(server: SignInServer) -> None:
    """RFC 9113 section 8.2.3."""
    browser = server.browser()
    browser.sign_in()
    with contextlib.closing(http.client.HTTPConnection("127.0.0.1", server.port, timeout=PATIENCE)) as connection:
        connection.putrequest("GET", "/account")
        connection.putheader("cookie", "other=1")
        for name, value in browser.cookies.items():
            connection.putheader("cookie", f"{name}={value}")
        connection.endheaders()
        assert connection.getresponse().status == 200


def test_servers_under_two_paths_of_one_host_have_cookies_of_their_own() -> None:
    names = {Cookies(f"{HTTPS}{path}").set("session", "x", 1)[1].partition("=")[0] for path in ("", "/a", "/b")}
    assert len(names) == 3
    assert all(name.startswith("__Host-toolgate-") for name in names)


def test_a_browser_without_cookies_is_told_of_cookies(server: SignInServer) -> None:
    browser = server.browser()
    page = browser.get("/login")
    browser.cookies.clear()
    got = browser.post("/login", {"csrf": page.field("csrf"), "username": "ada", "password": PASSWORD})
    assert (got.status, "needs a cookie" in got.text) == (403, True)


def test_az_06_a_form_that_is_sent_twice_gets_the_same_answer_and_one_grant(server: SignInServer) -> None:
    browser, page = ask_signed_in(server)
    form = answer(page, "tools:read")
    with concurrent.futures.ThreadPoolExecutor() as pool:
        got = list(pool.map(lambda _: browser.post("/consent", form), range(3)))
    assert [one.status for one in got] == [303] * 3
    assert len({one.location for one in got}) == 1
    assert len(server.granted()) == 1
    other = browser.post("/consent", answer(page, "tools:shell"))
    assert (other.status, "was already answered" in other.text) == (410, True)
    assert server.browser().post("/consent", form).status == 410  # nobody else hears of it


def test_a_form_that_is_sent_again_later_gets_no_second_answer() -> None:
    clock = Clock()
    answered = AnsweredQuestions(clock)

    first, second = redirect("/one"), Response(status_code=410)

    async def answer_first() -> Response:
        return first

    async def answer_second() -> Response:
        return second

    async def body() -> None:
        assert await answered.answer_once("q", b"form", answer_first) is first
        answered.mark_answered("q")
        assert await answered.answer_once("q", b"form", answer_second) is first
        assert await answered.answer_once("q", b"another", answer_second) is second
        clock.now += 10
        assert await answered.answer_once("q", b"form", answer_second) is second
        assert "q" in answered
        clock.now += 600
        assert "q" not in answered

    asyncio.run(body())


def test_az_07_a_document_on_a_shared_host_is_shown_whole(server: SignInServer) -> None:
    id = "https://raw.example/evil/x/client.json"
    server.know(id, "document", "Claude", "https://evil.example/back")
    _, page = ask_signed_in(server, client=id, uri="https://evil.example/back")
    assert '<bdi class="url">https://<b>raw.example</b>/evil/x/client.json</bdi>' in page.text


def test_the_account_page_says_where_the_code_went_and_what_each_scope_means(server: SignInServer) -> None:
    uris = (
        "https://chatgpt.example/a",
        "https://claude.example/b",
        "https://cursor.example/c",
        "https://evil.example/d",
    )
    server.know("many", "dynamic", "Claude", *uris)
    browser, page = ask_signed_in(server, client="many", uri=uris[3])
    location = browser.post("/consent", answer(page, "tools:shell")).location
    assert server.redeem(dict(urllib.parse.parse_qsl(location.partition("?")[2])), "many", uris[3])["status"] == 200
    shown = browser.get("/account").text
    assert "at <b><bdi>evil.example</bdi></b>" in shown
    assert "chatgpt.example" not in shown
    assert "Run any command in a shell" in shown


def test_a_scope_of_a_plugin_s_own_is_told_in_words() -> None:
    assert describe_scope({}, "acme:x") == "Use the tools of the plugin that needs “acme:x”."


def test_the_scope_that_most_apps_need_is_named(server: SignInServer) -> None:
    _, page = ask_signed_in(server)
    assert "Most apps need <code>tools:read</code>, which <code>tools:shell</code> includes." in page.text


def test_an_account_made_meanwhile_is_no_fault_of_the_pairing_code(tmp_path: Path) -> None:
    with sign_in_server(tmp_path) as made:
        browser = made.browser()
        page = browser.get("/login")
        made.add()
        fields = {"csrf": page.field("csrf"), "question": "", "username": "eve", "password": PASSWORD, "code": "AAAA"}
        got = browser.post("/login", fields)
        assert (got.status, "has been created in the meantime" in got.text) == (403, True)


def test_cookies_are_bound_to_the_host_over_https(secure: SignInServer) -> None:
    browser = secure.browser(host="gate.example")
    page = browser.get(secure.asking(uri="https://app.example/back"))
    made = browser.sign_in(page.location)
    assert made.status == 303
    for line in made.set_cookies:
        assert re.fullmatch(
            r"__Host-toolgate-(session|device-\w{12})=[\w-]{43}; Path=/; "
            r"Max-Age=(43200|15552000); HttpOnly; SameSite=Lax; Secure",
            line,
        )


def test_sec_11_a_session_planted_before_login_is_not_the_one_after(server: SignInServer) -> None:
    browser = server.browser()
    page = browser.get(browser.get(server.asking()).location)
    planted = "A" * 43
    browser.cookies[f"toolgate-{server.port}-session"] = planted
    fields = {"csrf": page.field("csrf"), "question": page.field("question")}
    assert browser.post("/login", {**fields, "username": "ada", "password": PASSWORD}).status == 303
    assert browser.cookies[f"toolgate-{server.port}-session"] != planted
    other = server.browser()
    other.cookies[f"toolgate-{server.port}-session"] = planted
    assert other.get("/account").location == "/login"


@pytest.mark.parametrize("spoilt", ["csrf missing", "csrf of another page", "other browser", "cross-site", "same-site"])
def test_sec_11_a_forged_answer_is_asked_again_and_grants_nothing(spoilt: str, server: SignInServer) -> None:
    browser, page = ask_signed_in(server)
    fields, told = dict(answer(page)), {}
    if spoilt == "csrf missing":
        del fields["csrf"]
    elif spoilt == "csrf of another page":
        fields["csrf"] = browser.get("/account").field("csrf")
    elif spoilt == "other browser":
        server.add("bob")
        browser = server.browser()
        browser.sign_in(name="bob")
    else:
        told = {"sec_fetch_site": spoilt}
    got = browser.post("/consent", [*fields.items(), ("scope", "tools:read")], **told)
    assert got.status == 403
    assert "nothing was done" in got.text
    assert server.granted() == []
    assert browser.post("/consent", answer(got, "tools:read")).status == 303  # the page shown is good


def test_sec_11_login_and_logout_can_not_be_forged(server: SignInServer) -> None:
    browser = server.browser()
    forged = {"username": "ada", "password": PASSWORD, "csrf": "", "question": ""}
    assert browser.post("/login", forged).status == 403
    browser.sign_in()
    assert browser.get("/account").status == 200
    browser.post("/logout", {"csrf": "0" * 64})
    assert browser.get("/account").status == 200
    browser.post("/logout", {"csrf": browser.get("/account").field("csrf")})
    assert browser.get("/account").location == "/login"


def test_az_07_only_what_was_asked_and_ticked_is_granted(server: SignInServer) -> None:
    browser, page = ask_signed_in(server, scope="tools:read tools:web")
    assert "tools:shell" not in page.text
    got = browser.post("/consent", answer(page, "tools:web", "tools:shell", "admin"))
    assert got.location.startswith(f"{server.app}?code=")
    assert server.granted() == [(DOCUMENT, "ada", "tools:web")]


def test_az_07_nothing_ticked_is_asked_again(server: SignInServer) -> None:
    browser, page = ask_signed_in(server)
    got = browser.post("/consent", answer(page))
    assert got.status == 400
    assert "Tick at least one box, or deny" in got.text
    assert server.granted() == []


def test_az_07_a_form_without_a_decision_is_a_denial(server: SignInServer) -> None:
    browser, page = ask_signed_in(server)
    got = browser.post("/consent", answer(page, "tools:read", decision=""))
    assert "error=access_denied" in got.location


@pytest.mark.parametrize(("client", "uri"), [("self", "https://evil.example/back"), ("local", "")])
def test_az_07_sec_12_the_consent_page_names_the_client_and_the_destination(
    client: str, uri: str, server: SignInServer
) -> None:
    _, page = ask_signed_in(server, client=client, uri=uri)
    assert "not verified" in page.text
    assert (uri.removeprefix("https://").removesuffix("/back") or server.app.split("/")[2]) in page.text
    assert f"{server.url}/mcp" in page.text
    assert ("its name can’t be verified" in page.text) == (client == "local")


def test_the_consent_page_says_what_offline_access_means(server: SignInServer) -> None:
    for scope, is_said in (("tools:read offline_access", True), ("tools:read", False)):
        _, page = ask_signed_in(server, scope=scope)
        assert ("Stay signed in until you revoke it" in page.text) is is_said
        assert "offline_access" not in page.text


def test_an_app_with_a_scheme_of_its_own_is_named_as_such_and_gets_its_query_back(server: SignInServer) -> None:
    """RFC 8252 section 7.1; RFC 6749 section 3.1.2."""
    uri = "claude.ai:/back?q=%E9&flag&a=b+c"  # a scheme that looks like a host
    server.know("native", "dynamic", "Fern", uri)
    browser, page = ask_signed_in(server, client="native", uri=uri)
    assert "an app on your computer (claude.ai:)" in page.text
    assert "its name can’t be verified" in page.text and "not verified" in page.text
    for decision, first in (("approve", "code="), ("deny", "error=access_denied&")):
        page = browser.get(browser.get(server.asking(client="native", uri=uri)).location)  # asked each time
        got = browser.post("/consent", answer(page, "tools:read", decision=decision))
        assert (got.status, got.location.startswith(f"{uri}&{first}")) == (303, True)
        assert "form-action" not in page.headers["content-security-policy"]
    wrong = browser.get(server.asking(client="native", uri=uri, scope="none"))
    assert wrong.status == 400 and "Continuing opens an app on your computer (claude.ai:)" in wrong.text
    assert html.escape(f"{uri}&error=invalid_scope", quote=False) in wrong.text


def test_sec_12_a_name_is_shown_as_text(server: SignInServer) -> None:
    name = "<b onclick=x>Claude</b> {{ 7*7 }}\u202e"
    server.know("self", "dynamic", name, "https://evil.example/back")
    _, page = ask_signed_in(server, client="self", uri="https://evil.example/back")
    assert "<b onclick" not in page.text
    assert "&lt;b onclick=x&gt;Claude&lt;/b&gt; {{ 7*7 }}" in page.text


def test_remembered_consent_is_for_the_same_question_only(server: SignInServer) -> None:
    browser, page = ask_signed_in(server, uri="https://app.example/back", scope="tools:read")
    assert browser.post("/consent", answer(page, "tools:read")).status == 303
    again = browser.get(server.asking(uri="https://app.example/back", scope="tools:read"))
    assert again.location.startswith("https://app.example/back?code=")
    for more in (
        {"scope": "tools:read tools:web"},
        {"scope": "tools:read", "prompt": "consent"},
        {"scope": "tools:read", "uri": server.app},  # a program on this machine, whoever it is
        {"client": "self", "uri": "https://evil.example/back", "scope": "tools:read"},
    ):
        asked = server.asking(**{"uri": "https://app.example/back", **more})
        assert browser.get(asked).location.startswith("/consent?question="), more


def test_a_shell_is_never_granted_without_a_click(server: SignInServer) -> None:
    asked = {"uri": "https://app.example/back", "scope": "tools:read tools:shell"}
    browser, page = ask_signed_in(server, **asked)
    assert browser.post("/consent", answer(page, "tools:read", "tools:shell")).status == 303
    assert browser.get(server.asking(**asked)).location.startswith("/consent?question=")
    less = browser.get(server.asking(**{**asked, "scope": "tools:read"}))
    assert less.location.startswith("https://app.example/back?code=")


def test_the_page_says_that_an_earlier_grant_to_the_app_stays(server: SignInServer) -> None:
    asked = {"uri": "https://app.example/back", "scope": "tools:read tools:web", "prompt": "consent"}
    browser, page = ask_signed_in(server, **asked)
    assert "allowed this app before" not in page.text
    first = browser.post("/consent", answer(page, "tools:read", "tools:web")).location
    server.redeem(dict(urllib.parse.parse_qsl(first.partition("?")[2])), uri="https://app.example/back")
    page = browser.get(browser.get(server.asking(**asked)).location)
    assert "You have allowed this app before. Unticking" in page.text
    second = browser.post("/consent", answer(page, "tools:read")).location
    server.redeem(dict(urllib.parse.parse_qsl(second.partition("?")[2])), uri="https://app.example/back")
    assert [scopes for _, _, scopes in server.granted()] == ["tools:read tools:web", "tools:read"]
    other = browser.get(browser.get(server.asking("self", "https://evil.example/back")).location)
    assert "allowed this app before" not in other.text


@pytest.mark.parametrize("client", ["local", DOCUMENT])
def test_az_07_what_goes_to_loopback_is_never_approved_by_itself(client: str, server: SignInServer) -> None:
    browser, page = ask_signed_in(server, client=client)
    assert browser.post("/consent", answer(page, *SERVED)).status == 303
    assert browser.get(server.asking(client)).location.startswith("/consent?question=")


def test_az_02_sec_02_what_can_not_be_trusted_gets_a_page_and_no_redirect(server: SignInServer) -> None:
    browser = server.browser()
    for path in (server.asking("nobody"), server.asking(uri="javascript:alert(1)"), "/authorize"):
        got = browser.get(path)
        assert (got.status, "location" in got.headers) == (400, False)
    for path in ("/login?next=https://evil.example", "/logout?next=//evil.example", "/callback?state=x&next=//e"):
        assert "location" not in browser.get(path).headers


@pytest.mark.parametrize("client", ["local", "self", DOCUMENT])
def test_az_02_other_errors_go_back_to_the_client_by_way_of_the_person(client: str, server: SignInServer) -> None:
    uri = "https://evil.example/back" if client == "self" else server.app
    got = server.browser().get(server.asking(client, uri, response_type="token"))
    assert (got.status, "location" in got.headers) == (400, False)
    assert f'href="{uri}?error=unsupported_response_type&amp;' in got.text
    assert f"Continue to {urllib.parse.urlsplit(uri).netloc}</a>" in got.text


def test_authorization_requests_come_by_get_alone(server: SignInServer) -> None:
    fields = dict(urllib.parse.parse_qsl(server.asking().partition("?")[2]))
    got = server.browser().post("/authorize", fields)
    assert (got.status, got.headers["allow"]) == (405, "GET, OPTIONS")


def test_sec_18_hostile_parameters_of_pages_are_refused(server: SignInServer) -> None:
    browser = server.browser()
    for path in (
        "/login?question=%00",
        "/login?question=%ff",
        "/consent?question=a&question=b",
        "/callback?state=a&state=b",
    ):
        assert browser.get(path).status == 400
    assert browser.ask("POST", "/login", b"a=1", content_type="multipart/form-data").status == 400
    assert browser.post("/consent", [("question", "a"), ("question", "b")]).status == 400
    assert browser.post("/login", {"username": "a" * 70_000}).status == 413


def test_sec_17_too_many_passwords_are_told_to_wait(server: SignInServer) -> None:
    browser = server.browser()
    got = [browser.sign_in(password=f"a guess {n}") for n in range(5)]
    while got[-1].status == 403:  # the waits are short at first, and a slow machine outwaits some
        assert len(got) < 12
        got.append(browser.sign_in(password="a guess"))
    assert [one.status for one in got] == [403] * (len(got) - 1) + [429]
    assert int(got[-1].headers["retry-after"]) >= 1
    assert re.search(r"Wait \d+ seconds? and", got[-1].text)
    assert browser.sign_in().status in (429, 303)


def test_sec_06_a_wrong_password_comes_back_nowhere(server: SignInServer, caplog: pytest.LogCaptureFixture) -> None:
    got = server.browser().sign_in(password="my other password")
    assert got.status == 403
    assert "my other password" not in got.text
    assert 'value="ada"' in got.text
    assert "my other password" not in caplog.text


def test_the_first_account_is_made_with_the_code_from_the_log(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with sign_in_server(tmp_path) as made:
        browser = made.browser()
        page = browser.get(browser.get(made.asking()).location)
        assert "Create the first account" in page.text
        code = re.findall(r"pairing code ([A-Z2-7-]+)", caplog.text)[-1]
        assert code not in page.text
        fields = {"csrf": page.field("csrf"), "question": page.field("question"), "username": "Ada"}
        wrong = browser.post("/login", {**fields, "password": PASSWORD, "code": "AAAA-BBBB"})
        assert (wrong.status, "code is wrong or has expired" in wrong.text) == (403, True)
        weak = browser.post("/login", {**fields, "password": "short", "code": code})
        assert (weak.status, "at least 8 characters" in weak.text) == (403, True)
        made_it = browser.post("/login", {**fields, "password": PASSWORD, "code": code})
        assert made_it.location.startswith("/consent?question=")
        late = made.browser()
        again = late.get("/login")
        assert "Create the first account" not in again.text
        fields = {"csrf": again.field("csrf"), "question": "", "username": "eve", "password": PASSWORD, "code": code}
        assert late.post("/login", fields).status == 403
        assert late.get("/account").location == "/login"


def test_the_account_page_takes_back_only_ones_own_grants(server: SignInServer) -> None:
    browser, page = ask_signed_in(server)
    location = browser.post("/consent", answer(page, "tools:read")).location
    tokens = server.redeem(dict(urllib.parse.parse_qsl(location.partition("?")[2])))
    assert (tokens["status"], tokens["scope"]) == (200, "tools:read")
    mine = browser.get("/account")
    assert "Fernhill" in mine.text
    grant = re.findall(r'name="grant" value="([^"]+)"', mine.text)[0]
    server.add("bob")
    bob = server.browser()
    bob.sign_in(name="bob")
    theirs = bob.get("/account")
    assert "Fernhill" not in theirs.text
    assert "nothing to revoke" in bob.post("/account", {"csrf": theirs.field("csrf"), "grant": grant}).text
    stale = browser.post("/account", {"csrf": "", "grant": grant})
    assert (stale.status, "no longer current" in stale.text, "Fernhill" in stale.text) == (403, True, True)
    assert "Access was revoked" not in browser.get("/account?done=1").text
    refresh = {"grant_type": "refresh_token", "client_id": DOCUMENT, "refresh_token": tokens["refresh_token"]}
    again = json.loads(browser.post("/token", refresh).body)
    assert again["scope"] == "tools:read"
    taken = browser.post("/account", {"csrf": mine.field("csrf"), "grant": grant})
    assert (taken.status, "Access was revoked" in taken.text, "Fernhill" in taken.text) == (200, True, False)
    assert "Fernhill" not in browser.get("/account").text
    assert browser.post("/token", {**refresh, "refresh_token": again["refresh_token"]}).status == 400


def test_sec_08_a_removed_account_can_not_go_on(server: SignInServer) -> None:
    browser, page = ask_signed_in(server)
    location = browser.post("/consent", answer(page, "tools:read")).location
    tokens = server.redeem(dict(urllib.parse.parse_qsl(location.partition("?")[2])))
    assert server.sign_in.accounts is not None
    server.do(server.sign_in.accounts.remove("ada"))
    assert browser.get("/account").location == "/login"
    refresh = {"grant_type": "refresh_token", "client_id": DOCUMENT, "refresh_token": tokens["refresh_token"]}
    got = browser.post("/token", refresh)
    assert (got.status, json.loads(got.body)["error"]) == (400, "invalid_grant")


def test_mcp_12_no_secret_is_logged(server: SignInServer, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("DEBUG", "toolgate")
    browser, page = ask_signed_in(server)
    location = browser.post("/consent", answer(page, "tools:read")).location
    secrets = [PASSWORD, page.field("csrf"), re.findall(r"code=([^&]+)", location)[0], *browser.cookies.values()]
    assert not [secret for secret in secrets if secret in caplog.text]


# -- guessing


def tried(browser: Browser, name: str, password: str = "a guess") -> int:
    return browser.sign_in("/login", name, password).status


def test_sec_17_a_guesser_locks_out_neither_all_people_nor_the_owner(
    server: SignInServer, caplog: pytest.LogCaptureFixture
) -> None:
    """Behind an unnamed proxy on this machine, all people share one address."""
    owner, thief = (server.browser(x_forwarded_for=address) for address in ("192.0.2.1", "203.0.113.5"))
    assert owner.sign_in().status == 303
    assert {tried(thief, f"name{number}") for number in range(11)} == {403}
    assert 429 in {tried(thief, "ada") for _ in range(6)}
    owner.cookies = {name: value for name, value in owner.cookies.items() if "device" in name}
    assert len(owner.cookies) == 1  # the browser is closed and opened again
    assert tried(thief, "ada", PASSWORD) == 429
    assert owner.sign_in().status == 303
    assert caplog.text.count("--trusted-proxies") == 1


def test_a_sign_in_is_one_line_of_the_log_whatever_was_typed(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "toolgate.auth")
    with sign_in_server(tmp_path, trusted_proxies=("127.0.0.1",)) as made:
        made.add()
        assert made.browser(x_forwarded_for="203.0.113.5:4711").sign_in().status == 303
        browser = made.browser(x_forwarded_for="203.0.113.5:4711")
        forged = 'eve" \nsign-in refused: from 198.51.100.1 by password'
        assert tried(browser, forged, "sesame sesame") == 403
        assert tried(made.browser(x_forwarded_for="from 198.51.100.1 by"), "ada") == 403
        for _ in range(5):
            tried(browser, "ada", "sesame sesame")
        while tried(browser, "ada", "sesame sesame") != 429:
            pass
    lines = [line for line in caplog.messages if line.startswith("sign-in")]
    assert lines[:3] == [
        'sign-in accepted: from 203.0.113.5 by password as "ada"',
        "sign-in refused: from 203.0.113.5 by password",  # of nobody: what was typed may have been a password
        'sign-in refused: from unknown by password as "ada"',
    ]
    assert lines[-1] == 'sign-in throttled: from 203.0.113.5 by password as "ada"'
    held = [value for value in browser.cookies.values() if value]
    assert not [secret for secret in ("sesame", PASSWORD, *held) if secret in caplog.text]


def test_a_proxy_that_adds_a_header_of_its_own_has_the_last_word(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Some keep the client's header, and add their own in a second line."""
    with sign_in_server(tmp_path, trusted_proxies=("127.0.0.1",)) as made:
        proxied = {"X_Forwarded_For": "203.0.113.5", "X_Forwarded_Proto": "https", "Tracestate": "b=2"}
        forged = {"x_forwarded_for": "198.51.100.1", "x_forwarded_proto": "http", "tracestate": "a=1"}
        assert tried(made.browser(**forged, **proxied), "ada") == 403
    assert [line for line in caplog.messages if line.startswith("sign-in")] == [
        "sign-in refused: from 203.0.113.5 by password"
    ]


@pytest.mark.parametrize("page", ["login", "consent"])
def test_a_question_that_was_changed_or_cut_off_is_gone(server: SignInServer, page: str) -> None:
    onward = urllib.parse.urlsplit(server.browser().get(server.asking()).location)
    question = urllib.parse.parse_qs(onward.query)["question"][0]
    assert server.browser().get(f"/{page}?question={question}").status in (200, 303)
    changed = f"{question[:60]}{'y' if question[60] == 'x' else 'x'}{question[61:]}"
    for wrong in (question[:-9], question[:60], changed, "x", "%C3%A9", "x" * 8_000):
        assert server.browser().get(f"/{page}?question={wrong}").status == 410
        assert server.browser().post("/consent", {"question": wrong, "decision": "approve"}).status == 410


def test_a_request_that_is_too_long_is_told_so(server: SignInServer) -> None:
    got = server.browser().get(server.asking(state="s" * 4_096))
    assert (got.status, "4 KiB" in got.text) == (400, True)
