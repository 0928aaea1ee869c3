"""Sign-in at identity providers, during consent, and by a proxy's header."""

import asyncio
import contextlib
import itertools
import json
import re
import time
import urllib.parse
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from tests.server.auth.authorization_in_process import AuthServer, with_auth_server
from tests.server.auth.fake_identity_providers import CLIENT, SECRET, Provider, provider
from tests.server.auth.oauth_server.test_clients import IDP, at_idp, encoded, jag
from tests.server.auth.oauth_server.test_clients import SECRET as AGENT_SECRET
from tests.server.auth.sign_in_server import DOCUMENT, Browser, PageAnswer, SignInServer, sign_in_server
from toolgate.server.auth.clients.model import ID_JAG
from toolgate.server.auth.login.accounts import Person, SignInError
from toolgate.server.auth.login.allowlist import UserAllowlist
from toolgate.server.auth.login.methods import SignInMethods, build_sign_in
from toolgate.server.auth.login.providers import GitHubProvider, OpenIdProvider
from toolgate.server.auth.login.sessions import MAX_PER_CONSENT, PER_ADDRESS, PendingLogin, PendingLogins
from toolgate.server.auth.login.trusted_proxies import MAX_HOPS, TrustedProxies
from toolgate.server.auth.oauth_server.responses import OAuthResponse
from toolgate.server.auth.tokens import jose
from toolgate.server.auth.tokens.access_tokens import OWN_ISSUER
from toolgate.server.base.principals.principal import Principal, derive_subject
from toolgate.server.state.sqlite.store import SqliteStore
from toolgate.tools.api.outbound.fetch import Web

FORM = {"oidc": (CLIENT, SECRET), "github": (CLIENT, SECRET)}


@pytest.fixture
def idp() -> Iterator[Provider]:
    with provider() as made:
        yield made


@pytest.fixture
def server(tmp_path: Path, idp: Provider) -> Iterator[SignInServer]:
    with sign_in_server(tmp_path, f"oidc={idp.url}", credentials=FORM, allow_users=("*",)) as made:
        yield made


def to_consent(made: SignInServer, browser: Browser, via: str = "oidc") -> PageAnswer:
    """Start an authorization as a client does, and return its page."""
    login = browser.get(made.asking()).location
    question = urllib.parse.parse_qs(login.partition("?")[2])["question"][0]
    page = browser.get(f"/consent?question={question}&via={via}")
    assert page.status == 200
    return page


def approve(browser: Browser, page: PageAnswer, *scopes: str) -> PageAnswer:
    names = ("csrf", "question", "via")
    fields = [*((name, page.field(name)) for name in names), ("decision", "approve")]
    return browser.post("/consent", [*fields, *(("scope", scope) for scope in scopes or ("tools:read",))])


def come_back(browser: Browser, answer: dict[str, str]) -> PageAnswer:
    return browser.get(f"/callback?{urllib.parse.urlencode(answer)}")


async def people_of(made: SignInServer) -> list[Person]:
    """Return the people of all grants."""
    words = "SELECT issuer, known_as, name FROM oauth_person"
    return await made.store.transact(lambda connection: [Person(*row) for row in connection.exec_driver_sql(words)])


def signed_in(made: SignInServer, idp: Provider, browser: Browser) -> PageAnswer:
    return come_back(browser, idp.arrive(approve(browser, to_consent(made, browser)).location))


def test_az_08_one_consents_then_signs_in_there_then_the_client_gets_its_code(
    server: SignInServer, idp: Provider
) -> None:
    browser = server.browser()
    login = browser.get(browser.get(server.asking()).location)
    assert login.location.endswith("&via=oidc")  # there is no other way in
    page = browser.get(login.location)
    assert "When you approve, you sign in with 127.0.0.1" in page.text
    assert not [name for name in browser.cookies if "away" in name or "session" in name]
    assert idp.seen == []
    sent = approve(browser, page, "tools:read", "tools:web")
    assert sent.status == 303
    assert sent.location.startswith(f"{idp.url}/authorize?tenant=x&")
    assert any("away" in line and "HttpOnly" in line and "Max-Age=600" in line for line in sent.set_cookies)
    answer = idp.arrive(sent.location)
    asked = idp.asked[0]
    assert {name: asked[name] for name in ("response_type", "scope", "code_challenge_method", "redirect_uri")} == {
        "response_type": "code",
        "scope": "openid email profile",
        "code_challenge_method": "S256",
        "redirect_uri": f"{server.url}/callback",
    }
    back = come_back(browser, answer)
    assert back.location.startswith(f"{server.app}?code=")
    assert not [name for name in browser.cookies if "away" in name]
    assert server.granted() == [(DOCUMENT, "248289", "tools:read tools:web")]
    assert server.do(people_of(server)) == [Person(idp.url, "248289", "248289")]
    assert "248289" in browser.get("/account").text


def test_mcp_01_another_client_is_asked_about_though_one_is_signed_in(server: SignInServer, idp: Provider) -> None:
    browser = server.browser()
    assert signed_in(server, idp, browser).status == 303
    asked = browser.get(server.asking("self", "https://evil.example/back"))
    assert asked.location.startswith("/consent?question=")
    assert "Definitely Claude" in browser.get(asked.location).text


def test_mcp_02_a_callback_without_our_cookie_is_refused(server: SignInServer, idp: Provider) -> None:
    victim, attacker = server.browser(), server.browser()
    answer = idp.arrive(approve(attacker, to_consent(server, attacker)).location)
    got = come_back(victim, answer)
    assert (got.status, "not signed in" in got.text) == (400, True)
    assert victim.get("/account").location == "/login"
    for changed in ({"state": "x"}, {"state": ""}):
        assert come_back(attacker, {**answer, **changed}).status == 400
    assert server.granted() == []
    assert "/token" not in idp.seen


def test_az_08_the_cookie_of_a_sign_in_elsewhere_is_bound_to_the_host_over_https(tmp_path: Path, idp: Provider) -> None:
    with _gate(tmp_path, {"ways": ("oidc",), "users": ("*",)}, idp) as made:
        browser = made.browser(host="gate.example")
        sent = approve(browser, to_consent(made, browser))
        (left,) = (line for line in sent.set_cookies if "away" in line)
        shape = r"__Host-toolgate-away-\w+=[\w-]{43}; Path=/; Max-Age=600; HttpOnly; SameSite=Lax; Secure"
        assert re.fullmatch(shape, left)
        back = come_back(browser, idp.arrive(sent.location))
        assert back.location.startswith(f"{made.app}?code=")
        assert any(line.startswith("__Host-toolgate-away-") and "Max-Age=0" in line for line in back.set_cookies)


@pytest.mark.parametrize(
    ("claims", "users", "comes"),
    [
        ({"email": "ada@corp.example", "hd": "corp.example"}, "@corp.example", True),
        ({"email": "ada@corp.example"}, "@corp.example", False),  # a personal account, whoever has the address today
        ({"email": "ada@corp.example"}, "ada@corp.example", True),  # the operator named that very address
        ({"email": "ada@gmail.com"}, "@gmail.com", True),
        ({"email": f"{'a' * 250}@gmail.com", "hd": "x"}, "@gmail.com", False),
    ],
)
def test_of_googles_accounts_a_domain_lets_those_of_the_organisation_in(
    claims: dict[str, Any], users: str, comes: bool, tmp_path: Path, idp: Provider
) -> None:
    def change(ways: SignInMethods, web: Web) -> SignInMethods:
        made = OpenIdProvider(idp.url, CLIENT, SECRET, UserAllowlist((users,), ("oidc",)), web.fetch, hosted="hd")
        return replace(ways, providers={"oidc": made})

    idp.claims = {"email_verified": True, **claims}
    with sign_in_server(tmp_path, f"oidc={idp.url}", credentials=FORM, allow_users=(users,), change=change) as made:
        assert signed_in(made, idp, made.browser()).status == (303 if comes else 403)


def test_google_is_known_for_that_by_its_issuer() -> None:
    given: Any = (CLIENT, SECRET, UserAllowlist(("*",), ("oidc",)), None)
    assert OpenIdProvider("https://accounts.google.com", *given)._hosted == "hd"
    assert OpenIdProvider("https://login.example", *given)._hosted == ""


@contextlib.contextmanager
def _at_both(folder: Path, oidc: Provider, github: Provider) -> Iterator[SignInServer]:
    """Run two fake providers, each with its own server."""

    def change(ways: SignInMethods, web: Web) -> SignInMethods:
        made = GitHubProvider(
            github.url, CLIENT, SECRET, UserAllowlist(("*",), ("oidc", "github")), web.fetch, github.url
        )
        return replace(ways, providers={**ways.providers, "github": made})

    ways = (f"oidc={oidc.url}", "github")
    with sign_in_server(folder, *ways, credentials=FORM, allow_users=("*",), change=change) as made:
        yield made


@pytest.mark.parametrize("via", ["oidc", "github"])
def test_a_code_of_one_provider_never_goes_to_the_other(via: str, tmp_path: Path, idp: Provider) -> None:
    with provider() as github, _at_both(tmp_path, idp, github) as made:
        browser = made.browser()
        asked, other = (idp, github) if via == "oidc" else (github, idp)
        asked.arrive(approve(browser, to_consent(made, browser, via)).location)
        attacker = made.browser()  # asks the other one, to see what is sent there
        other.arrive(approve(attacker, to_consent(made, attacker, "github" if via == "oidc" else "oidc")).location)
        back, answer = other.asked[0]["redirect_uri"], {"code": "another's", "state": asked.asked[0]["state"]}
        assert back != asked.asked[0]["redirect_uri"]
        got = browser.get(f"{back.removeprefix(made.url)}?{urllib.parse.urlencode(answer)}")
        assert (got.status, "not signed in" in got.text) == (400, True)
        assert not [path for path in (*idp.seen, *github.seen) if "token" in path]
        assert made.granted() == []


def test_each_of_two_providers_has_people_come_back_to_its_own_path(tmp_path: Path, idp: Provider) -> None:
    with provider() as github, _at_both(tmp_path, idp, github) as made:
        for via, asked, path in (("oidc", idp, "/callback"), ("github", github, "/callback/github")):
            browser = made.browser()
            answer = asked.arrive(approve(browser, to_consent(made, browser, via)).location)
            assert asked.asked[0]["redirect_uri"] == made.url + path
            got = browser.get(f"{path}?{urllib.parse.urlencode(answer)}")
            assert got.location.startswith(f"{made.app}?code="), got.text


def _departures(made: SignInServer) -> int:
    words = "SELECT count(*) FROM departure"
    return made.do(made.store.transact(lambda connection: int(connection.exec_driver_sql(words).scalar_one())))


def test_a_question_sends_few_browsers_away_at_a_time(server: SignInServer, idp: Provider) -> None:
    browser = server.browser()
    page = to_consent(server, browser)
    for _ in range(20):
        assert approve(browser, page).status == 303
    assert _departures(server) == MAX_PER_CONSENT
    assert come_back(browser, idp.arrive(approve(browser, page).location)).status == 303  # the last is the person's


def test_one_address_sends_few_browsers_away_a_minute(tmp_path: Path, idp: Provider) -> None:
    given: Any = {"credentials": FORM, "allow_users": ("*",), "trusted_proxies": ("127.0.0.1",)}
    with sign_in_server(tmp_path, f"oidc={idp.url}", **given) as made:
        flood = made.browser(x_forwarded_for="2001:db8:1::1")
        got = [approve(flood, to_consent(made, flood)) for _ in range(PER_ADDRESS + 2)]
        assert [each.status for each in got] == [303] * PER_ADDRESS + [429] * 2
        assert got[-1].headers["retry-after"] == "60" and "Wait a minute" in got[-1].text
        assert _departures(made) == PER_ADDRESS
        signed = signed_in(made, idp, made.browser(x_forwarded_for="2001:db8:2::1"))
        assert signed.location.startswith(f"{made.app}?code=")


def test_of_all_that_were_sent_away_the_newest_are_waited_for(tmp_path: Path) -> None:
    async def body() -> list[bool]:
        store = SqliteStore(tmp_path / "state")
        ticks = itertools.count(1_000_000.0)
        departures = PendingLogins(store, lambda: next(ticks), most=5)
        tickets = [await departures.start(PendingLogin("oidc", "", frozenset())) for _ in range(8)]
        held = [await departures.redeem(ticket) is not None for ticket in tickets]
        store.close()
        return held

    assert asyncio.run(body()) == [False] * 3 + [True] * 5


def test_az_08_a_callback_works_once(server: SignInServer, idp: Provider) -> None:
    browser = server.browser()
    answer = idp.arrive(approve(browser, to_consent(server, browser)).location)
    kept = dict(browser.cookies)
    assert come_back(browser, answer).status == 303
    browser.cookies = kept
    assert come_back(browser, answer).status == 400
    assert len(server.granted()) == 1


def test_az_09_two_tabs_can_be_away_at_once(server: SignInServer, idp: Provider) -> None:
    browser = server.browser()
    pages = [to_consent(server, browser) for _ in range(2)]
    answers = [idp.arrive(approve(browser, page).location) for page in pages]
    for answer in reversed(answers):
        assert come_back(browser, answer).location.startswith(server.app)


def test_a_refusal_at_the_provider_signs_no_person_in_and_can_be_retried(server: SignInServer, idp: Provider) -> None:
    browser = server.browser()
    answer = idp.arrive(approve(browser, to_consent(server, browser)).location)
    got = come_back(browser, {"state": answer["state"], "error": "access_denied", "error_description": "<b>evil"})
    assert got.status == 403
    assert "evil" not in got.text
    again = got.text.split('class="button" href="')[1].split('"')[0]
    assert browser.get(again).location.endswith("&via=oidc")


def expired(idp: Provider) -> None:
    idp.claims["exp"] = int(time.time()) - 3600


def by_another_key(idp: Provider) -> None:
    other = jose.generate_key()
    idp.sign = lambda claims: jose.sign(claims, replace(other, kid=idp.key.kid), "JWT")


def access_token(idp: Provider) -> None:
    idp.sign = lambda claims: jose.sign(claims, idp.key, "at+jwt")


def unsigned(idp: Provider) -> None:
    idp.sign = lambda claims: "eyJhbGciOiJub25lIn0." + jose.sign(claims, idp.key, "JWT").split(".")[1] + "."


BENT: dict[str, Any] = {
    "another nonce": lambda idp: idp.claims.update(nonce="x"),
    "no nonce": lambda idp: idp.claims.update(nonce=None),
    "another audience": lambda idp: idp.claims.update(aud="other"),
    "another audience besides": lambda idp: idp.claims.update(aud=[CLIENT, "other"]),
    "another party": lambda idp: idp.claims.update(azp="other"),
    "another issuer": lambda idp: idp.claims.update(iss="https://evil.example"),
    "no subject": lambda idp: idp.claims.update(sub=None),
    "a subject that is no text": lambda idp: idp.claims.update(sub=7),
    "expired": expired,
    "another key": by_another_key,
    "an access token": access_token,
    "unsigned": unsigned,
    "metadata of another issuer": lambda idp: idp.metadata.update(issuer="https://evil.example"),
    "no token endpoint": lambda idp: idp.metadata.update(token_endpoint=None),
    "a file": lambda idp: idp.metadata.update(jwks_uri="file:///etc/passwd"),
    "iss promised and not sent": lambda idp: idp.metadata.update(authorization_response_iss_parameter_supported=True),
}


@pytest.mark.parametrize("bent", BENT)
def test_sec_03_sec_07_an_invalid_id_token_signs_no_person_in(bent: str, server: SignInServer, idp: Provider) -> None:
    BENT[bent](idp)
    browser = server.browser()
    sent = approve(browser, to_consent(server, browser))
    got = come_back(browser, idp.arrive(sent.location)) if sent.status == 303 else sent
    assert (got.status, "You are not signed in" in got.text) == (403, True)
    assert server.granted() == []
    assert browser.get("/account").location == "/login"


def test_sec_03_an_answer_of_another_issuer_is_refused(server: SignInServer, idp: Provider) -> None:
    browser = server.browser()
    answer = idp.arrive(approve(browser, to_consent(server, browser)).location)
    assert come_back(browser, {**answer, "iss": "https://evil.example"}).status == 403
    assert "/token" not in idp.seen


def test_a_new_key_of_the_provider_is_found(
    server: SignInServer, idp: Provider, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("toolgate.server.auth.login.providers.KEY_RETRY", 0.0)
    browser = server.browser()
    assert signed_in(server, idp, browser).status == 303
    idp.key = jose.generate_key()
    assert signed_in(server, idp, server.browser()).status == 303


def test_a_provider_that_wants_the_secret_in_the_form_gets_it_there(server: SignInServer, idp: Provider) -> None:
    idp.metadata["token_endpoint_auth_methods_supported"] = ["client_secret_post"]
    assert signed_in(server, idp, server.browser()).status == 303


@pytest.mark.parametrize(
    ("claims", "userinfo", "comes"),
    [
        ({"email": "Ada@Example.com", "email_verified": True}, {}, True),
        ({"email": "eve@team.example", "email_verified": True}, {}, True),
        ({"email": "ada@example.com", "email_verified": False}, {}, False),
        ({"email": "ada@example.com"}, {}, False),
        ({"email": "bob@example.com", "email_verified": True}, {}, False),
        ({"email": "x@evil-team.example", "email_verified": True}, {}, False),
        ({"email": "x@team.example.evil", "email_verified": True}, {}, False),
        ({}, {"sub": "248289", "email": "ada@example.com", "email_verified": True}, True),
        ({}, {"sub": "another", "email": "ada@example.com", "email_verified": True}, False),
        ({}, {}, False),
        ({"sub": "friend"}, {}, True),
    ],
)
def test_only_allowed_people_come(
    claims: dict[str, Any], userinfo: dict[str, Any], comes: bool, tmp_path: Path, idp: Provider
) -> None:
    idp.claims, idp.userinfo = claims, userinfo
    users = ("ada@example.com", "@team.example", "oidc:friend")
    with sign_in_server(tmp_path, f"oidc={idp.url}", credentials=FORM, allow_users=users) as made:
        got = signed_in(made, idp, made.browser())
        assert got.status == (303 if comes else 403)
        assert len(made.granted()) == comes
        assert comes or "that account may not use this server" in got.text


def github(idp: Provider) -> Any:
    def change(ways: SignInMethods, web: Web) -> SignInMethods:
        allowed = UserAllowlist(("octo@team.example", "github:1"), ("github",))
        return replace(ways, providers={"github": GitHubProvider(idp.url, CLIENT, SECRET, allowed, web.fetch, idp.url)})

    return change


@pytest.mark.parametrize(("verified", "comes"), [(True, True), (False, False)])
def test_github_signs_in_by_number_and_verified_addresses(
    verified: bool, comes: bool, tmp_path: Path, idp: Provider
) -> None:
    idp.emails = [{"email": "other@x.example", "verified": True}, {"email": "octo@team.example", "verified": verified}]
    ways = ("password", "github")
    with sign_in_server(tmp_path, *ways, credentials=FORM, allow_users=("1",), change=github(idp)) as made:
        browser = made.browser()
        sent = approve(browser, to_consent(made, browser, "github"))
        assert sent.location.startswith(f"{idp.url}/login/oauth/authorize?client_id={CLIENT}&")
        got = come_back(browser, idp.arrive(sent.location))
        assert got.status == (303 if comes else 403)
        assert made.do(people_of(made)) == [Person(idp.url, "583231", "octo")] * comes
        assert (SECRET in got.text, "octo" in browser.get("/account").text) == (False, comes)


def test_one_signs_in_for_the_account_page_without_a_client(tmp_path: Path, idp: Provider) -> None:
    with sign_in_server(tmp_path, "password", f"oidc={idp.url}", credentials=FORM, allow_users=("*",)) as made:
        made.add()
        browser = made.browser()
        page = browser.get("/login")
        assert "Continue with 127.0.0.1" in page.text
        forged = browser.post("/login", {"csrf": "", "question": "", "via": "oidc"})
        assert forged.status == 403
        sent = browser.post("/login", {"csrf": page.field("csrf"), "via": "oidc"})
        assert come_back(browser, idp.arrive(sent.location)).location == "/"


@pytest.mark.parametrize("entry", ["github:583231", "header:ada"])
def test_a_subject_of_a_way_that_is_not_offered_is_refused(entry: str) -> None:
    with pytest.raises(ValueError, match="has no effect without --login"):
        UserAllowlist([entry], ["oidc"])
    assert UserAllowlist([f"oidc:{entry}"], ["oidc"]).permits("oidc", entry, None)


def test_sec_16_an_unverified_address_names_no_person(server: SignInServer, idp: Provider) -> None:
    for claims in ({"email_verified": False}, {}, {"email_verified": "false"}):
        idp.claims = {"email": "ada@example.com", **claims}
        signed_in(server, idp, server.browser())
        assert server.do(people_of(server)) == [Person(idp.url, "248289", "248289")]


def test_signing_in_as_another_person_asks_the_provider_for_the_account(tmp_path: Path, idp: Provider) -> None:
    with sign_in_server(tmp_path, "password", f"oidc={idp.url}", credentials=FORM, allow_users=("*",)) as made:
        made.add()
        browser = made.browser()
        page = browser.get(browser.sign_in(browser.get(made.asking()).location).location)
        switch = re.findall(r'href="([^"]*switch=1)"', page.text)[0].replace("&amp;", "&")
        onward = re.findall(r'href="([^"]*via=oidc[^"]*)"', browser.get(switch).text)[0].replace("&amp;", "&")
        asked = browser.get(onward)
        assert "When you approve, you sign in with" in asked.text
        form = [(name, asked.field(name)) for name in ("csrf", "question", "via", "switch")]
        sent = browser.post("/consent", [*form, ("scope", "tools:read"), ("decision", "approve")])
        assert "prompt=select_account" in sent.location
        assert come_back(browser, idp.arrive(sent.location)).location.startswith(made.app)
        assert made.granted() == [(DOCUMENT, "248289", "tools:read")]


def test_a_refused_person_can_choose_another_account(tmp_path: Path, idp: Provider) -> None:
    with sign_in_server(tmp_path, f"oidc={idp.url}", credentials=FORM, allow_users=("ada@example.com",)) as made:
        browser = made.browser()
        sent = approve(browser, to_consent(made, browser))
        assert "prompt" not in sent.location
        got = come_back(browser, idp.arrive(sent.location))
        assert got.status == 403
        again = got.text.split('class="button" href="')[1].split('"')[0].replace("&amp;", "&")
        asked = browser.get(browser.get(again).location)
        form = [(name, asked.field(name)) for name in ("csrf", "question", "via", "switch")]
        sent = browser.post("/consent", [*form, ("scope", "tools:read"), ("decision", "approve")])
        assert "prompt=select_account" in sent.location


def test_sec_16_the_same_subject_of_two_issuers_is_two_people() -> None:
    from toolgate.server.base.principals.principal import Principal

    people = [Person("https://a.example", "1", "x"), Person("https://github.com", "1", "x"), Person("i", "1", "x")]
    assert len({Principal(person.issuer, person.subject, "c").name for person in people}) == 3
    with pytest.raises(ValueError, match="'1' does not name its provider"):
        UserAllowlist(["1"], ["oidc", "github"])
    both = UserAllowlist(["github:1"], ["oidc", "github"])
    assert both.permits("github", "1", None)
    assert not both.permits("oidc", "1", None)


@pytest.mark.parametrize(
    ("ways", "users", "proxies", "names"),
    [
        (("oidc=https://a.example",), (), (), "--allow-users"),
        (("github",), (), (), "--allow-users"),
        (("oidc",), ("*",), (), "--login"),
        (("github", "github"), ("*",), (), "--login"),
        (("carrier-pigeon",), (), (), "--login"),
        (("header=X-User",), ("*",), (), "--trusted-proxies"),
        (("header=X-User",), (), ("127.0.0.1",), "--allow-users"),
        (("header=X-User",), (), ("10.0.0.1/8",), "--trusted-proxies"),
        (("oidc=https://a.example", "github"), ("1",), (), "--allow-users"),
    ],
)
def test_a_way_in_that_would_be_too_wide_is_refused_at_the_start(
    ways: tuple[str, ...], users: tuple[str, ...], proxies: tuple[str, ...], names: str
) -> None:
    with pytest.raises(ValueError, match=names):
        build_sign_in(None, None, "https://gate.example", ways, FORM, users, proxies, now=time.time)  # type: ignore[arg-type]


def test_mcp_04_a_provider_in_a_private_network_is_not_asked(tmp_path: Path) -> None:
    with sign_in_server(tmp_path, "oidc=http://10.0.0.1", credentials=FORM, allow_users=("*",)) as made:
        browser = made.browser()
        got = approve(browser, to_consent(made, browser))
        assert (got.status, "the server&#39;s log has the details" in got.text) == (403, True)


def test_mcp_12_no_secret_of_a_sign_in_is_logged_or_kept(
    server: SignInServer, idp: Provider, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("DEBUG", "toolgate")
    idp.claims["nonce"] = "x"
    browser = server.browser()
    sent = approve(browser, to_consent(server, browser))
    kept = b"".join(path.read_bytes() for path in (tmp_path / "state").iterdir() if path.is_file())
    answer = idp.arrive(sent.location)
    ticket = next(value for name, value in browser.cookies.items() if "away" in name)
    come_back(browser, answer)
    secrets = [ticket, answer["state"], answer["code"], SECRET, idp.asked[0]["nonce"]]
    assert not [secret for secret in secrets if secret in caplog.text or secret.encode() in kept]


# -- removing access

GATE = "https://gate.example"  # the same after a restart, whatever the port


def refreshed(made: SignInServer, token: str) -> PageAnswer:
    form = {"grant_type": "refresh_token", "client_id": DOCUMENT, "refresh_token": token}
    return made.browser().post("/token", form)


def ended(made: SignInServer) -> list[bool]:
    """Return for each grant whether it was revoked."""
    words = "SELECT revoked_at IS NOT NULL FROM oauth_grant ORDER BY made_at"
    return made.do(made.store.transact(lambda connection: list(connection.exec_driver_sql(words).scalars())))


def by_provider(made: SignInServer, idp: Provider, browser: Browser, via: str) -> dict[str, str]:
    sent = approve(browser, to_consent(made, browser, via))
    return dict(urllib.parse.parse_qsl(come_back(browser, idp.arrive(sent.location)).location.partition("?")[2]))


def at_once(made: SignInServer, browser: Browser) -> dict[str, str]:
    page = browser.get(browser.get(made.asking()).location)
    return dict(urllib.parse.parse_qsl(approve(browser, page).location.partition("?")[2]))


def with_password(made: SignInServer, browser: Browser) -> dict[str, str]:
    login = browser.get(made.asking()).location
    page = browser.get(browser.sign_in(login).location)
    return dict(urllib.parse.parse_qsl(approve(browser, page).location.partition("?")[2]))


Way = dict[str, Any]
OIDC_ADA: Way = {"ways": ("oidc",), "users": ("ada@example.com",)}
PASSWORD_WAY: Way = {"ways": ("password",)}
HEADER_ADA: Way = {"ways": ("header=X-User",), "users": ("ada@example.com",), "proxies": ("127.0.0.1",)}
GITHUB_OCTO: Way = {"ways": ("github",), "users": ("583231",)}


@pytest.mark.parametrize(
    ("before", "after", "comes"),
    [
        (OIDC_ADA, OIDC_ADA, True),
        (OIDC_ADA, {**OIDC_ADA, "users": ("@example.com",)}, True),
        (OIDC_ADA, {**OIDC_ADA, "users": ("oidc:248289",)}, True),
        (OIDC_ADA, {**OIDC_ADA, "users": ("bob@example.com", "@team.example")}, False),
        (OIDC_ADA, PASSWORD_WAY, False),
        (OIDC_ADA, {"ways": ("github",), "users": ("*",)}, False),
        (GITHUB_OCTO, GITHUB_OCTO, True),
        (GITHUB_OCTO, {**GITHUB_OCTO, "users": ("583232",)}, False),
        (GITHUB_OCTO, {"ways": ("oidc",), "users": ("*",)}, False),
        (HEADER_ADA, {**HEADER_ADA, "users": ("@example.com",)}, True),
        (HEADER_ADA, {**HEADER_ADA, "users": ("bob",)}, False),
        (HEADER_ADA, PASSWORD_WAY, False),
        (PASSWORD_WAY, {**HEADER_ADA, "ways": ("password", "header=X-User")}, True),
        (PASSWORD_WAY, HEADER_ADA, False),
    ],
)
def test_sec_08_a_removed_person_can_neither_refresh_nor_come_back(
    before: Way, after: Way, comes: bool, tmp_path: Path, idp: Provider
) -> None:
    idp.claims = {"email": "ada@example.com", "email_verified": True}
    browser = _browser(0, before)
    with _gate(tmp_path, before, idp) as made:
        browser.port = made.port
        first = before["ways"][0]
        if first == "password":
            made.add()
            answer = with_password(made, browser)
        else:
            answer = at_once(made, browser) if "=" in first else by_provider(made, idp, browser, first)
        token = made.redeem(answer)["refresh_token"]
        assert refreshed(made, token).status == 200
        assert browser.get("/account").status == 200
    with _gate(tmp_path, after, idp) as made:
        browser.port = made.port
        got = refreshed(made, token)
        assert got.status == (200 if comes else 400)
        assert comes or json.loads(got.body)["error"] == "invalid_grant"
        assert ended(made) == [not comes]
        got = browser.get("/account")
        assert got.status in ((200,) if comes else (303, 403))
        assert got.headers.get("location", "/login") == "/login"
        person = Person(*_person_row(made))
        if not comes:
            asked = browser.get(made.asking()).headers.get("location", "/login?question=")
            assert asked.startswith("/login?question=")
            question = made.do(made.authorization.open_consent(made.asking().partition("?")[2]))
            told = made.do(made.authorization.answer_consent(question.id, person, frozenset(question.scopes)))
            assert "error=access_denied" in told.location
            assert len(ended(made)) == 1


def enterprise(way: str, *users: str, issuers: tuple[str, ...] = (IDP,)) -> dict[str, Any]:
    """Return the options of a server with an identity provider's grants."""
    ways = build_sign_in(None, None, GATE, (way,), FORM, users, (), issuers, now=time.time)  # type: ignore[arg-type]
    return {"can_sign_in": ways.can_sign_in}


async def by_assertion(auth: AuthServer, **said: Any) -> OAuthResponse:
    word = jag(now=auth.clock.now, scope="tools:shell tools:read", **said)
    return await auth.token(encoded("agent", AGENT_SECRET), grant_type=ID_JAG, assertion=word)


VERIFIED = {"email": "ada@corp", "email_verified": True}


@pytest.mark.parametrize(
    ("way", "users", "said", "comes"),
    [
        ("password", (), {}, True),  # whoever names the issuer and nobody of its people takes all
        (f"oidc={IDP}", ("*",), {}, True),
        (f"oidc={IDP}", ("oidc:ada@corp",), {}, True),
        (f"oidc={IDP}", ("ada@corp",), VERIFIED, True),
        (f"oidc={IDP}", ("@corp",), VERIFIED, True),
        (f"oidc={IDP}", ("bob@corp",), VERIFIED, False),
        (f"oidc={IDP}", ("bob@corp",), {}, False),
        (f"oidc={IDP}", ("ada@corp",), {}, False),  # nobody has verified that the subject is an address
        (f"oidc={IDP}", ("ada@corp",), {"email": "ada@corp"}, False),
        (f"oidc={IDP}", ("ada@corp",), {**VERIFIED, "email_verified": False}, False),
    ],
)
def test_tk_09_sec_08_an_enterprise_issuer_gets_tokens_for_allowed_people_only(
    way: str, users: tuple[str, ...], said: dict[str, Any], comes: bool, tmp_path: Path
) -> None:
    async def body(auth: AuthServer) -> None:
        answer = await by_assertion(auth, **said)
        if comes:
            assert (answer.status, answer.body["scope"]) == (200, "tools:read tools:shell")
            return
        told = {"error": "invalid_grant", "error_description": "This person may not sign in to this server."}
        assert (answer.status, answer.body) == (400, told)
        assert [await auth.rows(table) for table in ("oauth_access", "oauth_person")] == [0, 0]

    at_idp(tmp_path, body, **enterprise(way, *users))


def test_tk_09_sec_08_an_assertion_without_an_address_leaves_the_one_that_was_verified(tmp_path: Path) -> None:
    async def body(auth: AuthServer) -> None:
        for said, status in (
            (VERIFIED, 200),
            ({}, 200),
            ({"email": "ada@corp"}, 200),
            ({"email": "eve@corp", "email_verified": True}, 400),
            ({}, 200),  # what was refused left nothing behind
        ):
            assert (await by_assertion(auth, **said)).status == status, said

    at_idp(tmp_path, body, **enterprise(f"oidc={IDP}", "ada@corp"))


@pytest.mark.parametrize(
    "after",
    [enterprise(f"oidc={IDP}", "bob@corp"), enterprise("password", issuers=()), enterprise("github", "*", issuers=())],
    ids=["another is allowed", "the issuer is trusted no more", "neither is"],
)
def test_tk_09_sec_08_what_an_enterprise_issuer_got_for_people_ends_when_they_may_come_no_more(
    after: dict[str, Any], tmp_path: Path
) -> None:
    pair = (derive_subject(IDP, "ada@corp"), "agent")
    given: list[str] = []

    async def before(auth: AuthServer) -> None:
        given.append((await by_assertion(auth, **VERIFIED)).body["access_token"])
        assert await auth.authorization.find_valid_keys([pair]) == {pair}
        assert await auth.authorization.revoke_barred_people() == set()

    async def restarted(auth: AuthServer) -> None:
        await auth.tokens.verify(given[0])
        assert await auth.authorization.find_valid_keys([pair]) == set()
        assert await auth.authorization.revoke_barred_people() == {Principal(OWN_ISSUER, pair[0], "").name}
        assert not await auth.works(given[0])
        with pytest.raises(jose.InvalidTokenError):
            await auth.tokens.verify(given[0])

    at_idp(tmp_path, before, **enterprise("password"))
    with_auth_server(tmp_path, restarted, **after)


def test_sec_08_an_address_that_is_verified_no_more_opens_nothing(tmp_path: Path, idp: Provider) -> None:
    idp.claims = {"email": "ada@example.com", "email_verified": True}
    with _gate(tmp_path, {"ways": ("oidc",), "users": ("*",)}, idp) as made:
        token = made.redeem(by_provider(made, idp, made.browser(), "oidc"))["refresh_token"]
        idp.claims = {"email": "ada@example.com", "email_verified": False}
        by_provider(made, idp, made.browser(), "oidc")
    with _gate(tmp_path, OIDC_ADA, idp) as made:
        assert refreshed(made, token).status == 400


def _browser(port: int, way: Way) -> Browser:
    named = way["ways"][0].startswith("header=")
    return Browser(port, {"x-user": "ada@example.com"} if named else {})


def _gate(folder: Path, way: Way, idp: Provider) -> contextlib.AbstractContextManager[SignInServer]:
    """Run a server with the same state and public URL each time, and a fake GitHub."""

    def change(ways: SignInMethods, web: Web) -> SignInMethods:
        if "github" not in ways.providers:
            return ways
        allowed = UserAllowlist(way["users"], ("github",))
        return replace(
            ways, providers={"github": GitHubProvider(idp.url + "/g", CLIENT, SECRET, allowed, web.fetch, idp.url)}
        )

    ways = (f"oidc={idp.url}" if each == "oidc" else each for each in way["ways"])
    given: Any = {"allow_users": way.get("users", ()), "trusted_proxies": way.get("proxies", ())}
    return sign_in_server(folder, *ways, public_url=GATE, credentials=FORM, change=change, **given)


def _person_row(made: SignInServer) -> tuple[str, ...]:
    words = "SELECT issuer, known_as, name, email FROM oauth_person"
    return made.do(made.store.transact(lambda connection: tuple(connection.exec_driver_sql(words).one())))


# -- a proxy says who it is


def test_a_trusted_proxy_names_people(tmp_path: Path) -> None:
    given = {"allow_users": ("*",), "trusted_proxies": ("127.0.0.0/8",)}
    with sign_in_server(tmp_path, "header=X-Forwarded-User", **given) as made:  # type: ignore[arg-type]
        ada, bob = (made.browser(x_forwarded_user=name) for name in ("ada@example.com", "bob"))
        page = ada.get(ada.get(ada.get(made.asking()).location).headers.get("location", "") or "/account")
        asked = ada.get(made.asking()).location
        page = ada.get(asked)
        assert "ada@example.com" in page.text
        fields = [(name, page.field(name)) for name in ("csrf", "question", "via")]
        stolen = bob.post("/consent", [*fields, ("scope", "tools:read"), ("decision", "approve")])
        assert stolen.status == 403
        assert approve(ada, page).location.startswith(made.app)
        assert made.do(people_of(made)) == [Person("toolgate:header", "ada@example.com", "ada@example.com")]
        assert "Sign out" not in ada.get("/account").text
        out = ada.get("/logout")
        assert ("<button" in out.text, "Sign out there" in out.text) == (False, True)
        assert ada.post("/logout", {"csrf": "x"}).location == "/logout"
        nobody = made.browser()
        assert "Open this page through the gateway" in nobody.get("/login").text


def test_the_header_is_refused_from_other_peers(tmp_path: Path) -> None:
    given = {"allow_users": ("*",), "trusted_proxies": ("192.0.2.0/24",)}
    with sign_in_server(tmp_path, "password", "header=X-Forwarded-User", **given) as made:  # type: ignore[arg-type]
        made.add()
        forged = made.browser(x_forwarded_user="ada", x_forwarded_for="192.0.2.1")
        for path in ("/account", made.asking(), "/login", "/logout"):
            got = forged.get(path)
            assert (got.status, "from a configured proxy" in got.text) == (403, True), path
        assert made.browser().get("/login").status == 200


@pytest.mark.parametrize("said", ["", " ", "a" * 300, "ada\x7f", "\u00ff".encode().decode("latin-1")[:1]])
def test_an_invalid_header_names_no_person(said: str) -> None:
    with pytest.raises(SignInError) if said.strip() else _nothing() as caught:
        headers = {b"x-user": said.encode("latin-1")}
        ways = build_sign_in(None, None, "", ["header=X-User"], {}, ["*"], ["127.0.0.1"], now=time.time)  # type: ignore[arg-type]
        assert ways.trusted_header is not None
        assert ways.trusted_header.read_person(headers, "127.0.0.1") is None
    assert caught is not None


def _nothing() -> Any:
    return contextlib.nullcontext(True)


@pytest.mark.parametrize(
    ("peer", "forwarded", "address"),
    [
        ("203.0.113.5", "198.51.100.1", "203.0.113.5"),
        ("10.0.0.1", "198.51.100.1", "198.51.100.1"),
        ("10.0.0.1", "1.2.3.4, 198.51.100.1", "198.51.100.1"),
        ("10.0.0.1", "1.2.3.4, 198.51.100.1, 10.0.0.2", "198.51.100.1"),
        ("::ffff:10.0.0.1", "198.51.100.1", "198.51.100.1"),
        ("10.0.0.1", "", "10.0.0.1"),
        ("10.0.0.1", "1.2.3.4:5678", "1.2.3.4"),
        ("10.0.0.1", "9.9.9.9, [2001:db8::1]:5678, 10.0.0.2:80", "2001:db8::1"),
        ("10.0.0.1", "[2001:db8::1]", "2001:db8::1"),
        ("10.0.0.1", "2001:db8::1", "2001:db8::1"),
        ("127.0.0.1", "1.2.3.4", ""),  # a proxy that is not among them: all come from there
        ("::1", "1.2.3.4", ""),
        ("127.0.0.1", "", "127.0.0.1"),
        ("10.0.0.1", "somebody" * 1_000, ""),  # nor can it be of any length
        ("10.0.0.1", "1.2.3.4" + ", 10.0.0.2" * MAX_HOPS, "10.0.0.1"),
    ],
)
def test_sec_17_no_caller_chooses_the_address_of_its_throttle(peer: str, forwarded: str, address: str) -> None:
    assert TrustedProxies(["10.0.0.0/8"]).client_address(peer, forwarded) == address


def test_sec_17_an_untrusted_proxy_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    proxies = TrustedProxies()
    for _ in range(3):
        assert proxies.client_address("127.0.0.1", "1.2.3.4") == ""
    assert caplog.text.count("--trusted-proxies") == 1


def test_the_stand_in_is_strict() -> None:
    """The tests above rely on this: the fake refuses a wrong verifier or secret."""
    with provider() as idp:
        query = "state=s&code_challenge=x&redirect_uri=r&nonce=n"
        code = idp.arrive(f"{idp.url}/authorize?{query}")["code"]
        form = {
            "code": code,
            "code_verifier": "wrong",
            "redirect_uri": "r",
            "client_id": CLIENT,
            "client_secret": SECRET,
        }
        assert idp.answer("/token", form, "")[0] == 400
        assert json.dumps(idp.answer("/user", {}, "Bearer wrong")) == "[404, {}]"
