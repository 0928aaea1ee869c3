"""Clients that authenticate, clients that act for themselves, and identity providers' grants for people."""

import asyncio
import re
import threading
from pathlib import Path
from typing import Any

import pytest
from joserfc import jws
from joserfc.jwk import RSAKey

from tests.server.auth.authorization_in_process import (
    BACK,
    MCP,
    START,
    URL,
    VERIFIER,
    AuthServer,
    assertion,
    basic,
    pairs,
    with_auth_server,
)
from tests.server.auth.forged_tokens import packed
from toolgate.server.auth.clients.model import AUTH_METHODS, CLIENT_CREDENTIALS, ID_JAG, OAuthClient
from toolgate.server.auth.oauth_server.client_auth import ASSERTION, LONGEST
from toolgate.server.auth.tokens import jose
from toolgate.server.auth.tokens.jose import JoseKey
from toolgate.server.base.principals.principal import derive_subject
from toolgate.server.state.rows.clients import UNAPPROVED_LIFETIME
from toolgate.server.state.rows.grants import hash_secret

DOCUMENT = "https://app.example/oauth/client.json"
JWKS = "https://app.example/oauth/jwks.json"
KEY, OTHER = jose.generate_key(), jose.generate_key()
RSA = JoseKey("rsa-1", "RS256", RSAKey.generate_key(2048))
SECRET = "a secret of the office: with ümlaut % + &"
OFFICE = OAuthClient("office", "configured", "Office", (BACK,), "client_secret_basic", secret=hash_secret(SECRET))
NIGHTLY = OAuthClient(
    "nightly",
    "configured",
    "Nightly",
    (),
    "private_key_jwt",
    frozenset((CLIENT_CREDENTIALS,)),
    jwks=jose.format_jwks([KEY, RSA]),
)
BATCH = OAuthClient(
    "batch",
    "configured",
    "Batch",
    (),
    "client_secret_basic",
    frozenset((CLIENT_CREDENTIALS,)),
    ("tools:read",),
    hash_secret(SECRET),
)
CONFIGURED = {client.id: client for client in (OFFICE, NIGHTLY, BATCH)}


def signed(**more: Any) -> dict[str, str]:
    """Return the form of a client that authenticates by a signature."""
    given = {"client": "nightly", "key": KEY, **more}
    return {"client_assertion_type": ASSERTION, "client_assertion": assertion(**given)}


def encoded(client: str, secret: str) -> dict[str, str]:
    """Return Basic credentials as RFC 6749 section 2.3.1 requires: both parts form-encoded first."""
    from urllib.parse import quote_plus

    return basic(quote_plus(client), quote_plus(secret))


# Secrets


def test_a_secret_is_taken_in_the_header_or_the_form(tmp_path: Path) -> None:
    async def body(auth: AuthServer) -> None:
        for method in ("client_secret_basic", "client_secret_post"):
            kept = await auth.registered(token_endpoint_auth_method=method)
            client, secret = kept["client_id"], kept["client_secret"]
            for headers, form in ((basic(client, secret), {}), ({}, {"client_id": client, "client_secret": secret})):
                code = await auth.code(client)
                form = {"code": code, "redirect_uri": BACK, "code_verifier": VERIFIER, **form}
                answer = await auth.token(headers, grant_type="authorization_code", **form)
                assert answer.status == 200
                again = {**form, "grant_type": "refresh_token", "refresh_token": answer.body["refresh_token"]}
                assert (await auth.token(headers, **again)).status == 200
        code = await auth.code("office")
        form = {"grant_type": "authorization_code", "code": code, "redirect_uri": BACK, "code_verifier": VERIFIER}
        assert (await auth.token(encoded("office", SECRET), **form)).status == 200

    with_auth_server(tmp_path, body, configured_clients=CONFIGURED)


def test_a_confidential_client_needs_pkce_as_well(tmp_path: Path) -> None:
    """AZ-03, SEC-05."""

    async def body(auth: AuthServer) -> None:
        form = {"grant_type": "authorization_code", "code": await auth.code("office"), "redirect_uri": BACK}
        for verifier, error in ((None, "invalid_request"), ("w" * 43, "invalid_grant")):
            answer = await auth.token(encoded("office", SECRET), **form, code_verifier=verifier)
            assert answer.body["error"] == error
        assert (await auth.token(encoded("office", SECRET), **form, code_verifier=VERIFIER)).status == 200

    with_auth_server(tmp_path, body, configured_clients=CONFIGURED)


NOT_PROVEN: dict[str, tuple[dict[str, str], dict[str, str], str]] = {
    "no secret at all": ({}, {"client_id": "office"}, "invalid_client"),
    "another secret": (basic("office", "another"), {}, "invalid_client"),
    "an empty secret": (basic("office", ""), {}, "invalid_client"),
    "the digest": (basic("office", hash_secret(SECRET)), {}, "invalid_client"),
    "another secret in the form": ({}, {"client_id": "office", "client_secret": "another"}, "invalid_client"),
    "a secret without a client": ({}, {"client_secret": SECRET}, "invalid_client"),
    "a header that can't be read": ({"Authorization": "Basic %%%"}, {}, "invalid_client"),
    "a header without a colon": ({"Authorization": "Basic b2ZmaWNl"}, {}, "invalid_client"),
    "a bearer": ({"Authorization": "Bearer x"}, {}, "invalid_client"),
    "an unknown client": (encoded("nobody", SECRET), {}, "invalid_client"),
    "two clients": (encoded("office", SECRET), {"client_id": "batch"}, "invalid_client"),
    "header and form": (
        encoded("office", SECRET),
        {"client_id": "office", "client_secret": SECRET},
        "invalid_request",
    ),
    "header and assertion": (encoded("office", SECRET), signed(), "invalid_request"),
    "form and assertion": ({}, {"client_id": "nightly", "client_secret": SECRET, **signed()}, "invalid_request"),
    "a secret of a client that signs": ({}, {"client_id": "nightly", "client_secret": SECRET}, "invalid_client"),
    "a signature of a client with a secret": ({}, signed(client="office"), "invalid_client"),
}


@pytest.mark.parametrize(("headers", "form", "error"), NOT_PROVEN.values(), ids=NOT_PROVEN)
def test_a_client_that_does_not_authenticate_in_one_way_gets_no_token(
    tmp_path: Path, headers: dict[str, str], form: dict[str, str], error: str
) -> None:
    """SEC-14, TK-05."""

    async def body(auth: AuthServer) -> None:
        code = await auth.code("office")
        given = {"grant_type": "authorization_code", "code": code, "redirect_uri": BACK, "code_verifier": VERIFIER}
        answer = await auth.token(headers, **given, **form)
        assert (answer.status, answer.body["error"]) == (401 if error == "invalid_client" else 400, error)
        assert SECRET not in str(answer)
        given = {"grant_type": "client_credentials"}
        assert (await auth.token(headers, **given, **form)).body["error"] == error
        for endpoint in (auth.authorization.revoke, auth.authorization.introspect):
            assert (await endpoint([*pairs(form), ("token", "x")], headers)).body["error"] == error

    with_auth_server(tmp_path, body, configured_clients=CONFIGURED)


# Assertions (RFC 7523)


def test_a_clients_assertion_counts_once(tmp_path: Path) -> None:
    """RG-08, TK-08."""

    async def body(auth: AuthServer) -> None:
        for more in (
            {},
            {"aud": URL},
            {"aud": [f"{URL}/token"]},
            {"key": RSA},
            {"typ": "client-authentication+jwt"},
            {"exp": int(START) - 30},  # clocks differ
            {"exp": int(START) + 3_600},  # for less than it says
            {"exp": int(START) + 300, "iat": None},
        ):
            form = signed(**more)
            answer = await auth.token(grant_type="client_credentials", **form)
            assert answer.status == 200, (more, answer)
            again = await auth.token(grant_type="client_credentials", client_id="nightly", **form)
            assert (again.status, again.body["error"]) == (401, "invalid_client")
        form = signed()
        racing = await asyncio.gather(*(auth.token(grant_type="client_credentials", **form) for _ in range(8)))
        assert sorted(answer.status for answer in racing) == [200] + [401] * 7

    with_auth_server(tmp_path, body, configured_clients=CONFIGURED)


BAD_WORDS: dict[str, dict[str, Any]] = {
    "by another key": {"key": OTHER},
    "by another key of the same name": {"key": JoseKey(KEY.kid, "ES256", OTHER.material)},
    "for somebody else": {"aud": "https://other.example/token"},
    "for us with a slash": {"aud": f"{URL}/"},
    "for us and somebody else": {"aud": [URL, "https://other.example"]},
    "for another endpoint": {"aud": f"{URL}/revoke"},
    "for nobody": {"aud": None},
    "expired": {"exp": int(START) - 61},
    "without an end": {"exp": None},
    "good for ever": {"exp": int(START) + 10**8},
    "good for long, made nobody knows when": {"exp": int(START) + 301, "iat": None},
    "made long ago": {"exp": int(START) + 60, "iat": int(START) - 361},
    "from the future": {"iat": int(START) + 120},
    "not yet": {"nbf": int(START) + 120},
    "without an id": {"jti": None},
    "with a number for an id": {"jti": 7},
    "with a long id": {"jti": "x" * 300},
    "of another issuer": {"iss": "office"},
    "about somebody else": {"sub": "office"},
    "about nobody": {"sub": None},
}


@pytest.mark.parametrize("more", BAD_WORDS.values(), ids=BAD_WORDS)
def test_an_assertion_that_is_not_right_proves_nothing(tmp_path: Path, more: dict[str, Any]) -> None:
    async def body(auth: AuthServer) -> None:
        answer = await auth.token(grant_type="client_credentials", **signed(**more))
        assert (answer.status, answer.body["error"]) == (401, "invalid_client")
        assert await auth.rows("oauth_used") == 0

    with_auth_server(tmp_path, body, configured_clients=CONFIGURED)


@pytest.mark.parametrize("word", ["", "x", "a.b.c", "e30.e30.e30", "x" * 40_000, "....", "e30.W10.e30", "\ud800.a.b"])
def test_a_malformed_assertion_authenticates_no_client(tmp_path: Path, word: str) -> None:
    async def body(auth: AuthServer) -> None:
        form = {"client_assertion_type": ASSERTION, "client_assertion": word, "client_id": "nightly"}
        answer = await auth.token(grant_type="client_credentials", **form)
        assert answer.status in (400, 401)
        other = {**signed(), "client_assertion_type": "urn:ietf:params:oauth:client-assertion-type:saml2-bearer"}
        assert (await auth.token(grant_type="client_credentials", **other)).body["error"] == "invalid_client"

    with_auth_server(tmp_path, body, configured_clients=CONFIGURED)


def test_a_client_with_a_document_signs_by_the_keys_it_publishes(tmp_path: Path) -> None:
    """RG-08: the key set is fetched through the address check, cached, and fetched again for a new key."""

    async def body(auth: AuthServer) -> None:
        auth.pages.held[DOCUMENT] = {
            "client_id": DOCUMENT,
            "client_name": "Fernhill",
            "redirect_uris": [BACK],
            "token_endpoint_auth_method": "private_key_jwt",
            "jwks_uri": JWKS,
        }
        auth.pages.held[JWKS] = jose.format_jwks([KEY])
        form = {"redirect_uri": BACK, "code_verifier": VERIFIER, "grant_type": "authorization_code"}

        async def redeemed(key: JoseKey, **more: str) -> int:
            now = auth.clock.now
            code = await auth.code(DOCUMENT)
            answer = await auth.token(**form, code=code, **signed(client=DOCUMENT, key=key, now=now), **more)
            return answer.status

        assert await redeemed(KEY) == 200
        assert await redeemed(KEY, client_id=DOCUMENT) == 200
        assert auth.pages.asked.count(JWKS) == 1
        assert auth.pages.limits[-1] == (64 * 1024, 5.0, 0)
        code = await auth.code(DOCUMENT)
        assert (await auth.token(**form, code=code, client_id=DOCUMENT)).status == 401  # SEC-14
        auth.pages.held[JWKS] = jose.format_jwks([OTHER])
        assert await redeemed(OTHER) == 401  # fetched a moment ago
        assert auth.pages.asked.count(JWKS) == 1
        auth.clock.now += 31
        assert await redeemed(OTHER) == 200
        assert await redeemed(KEY) == 401
        auth.pages.held[JWKS] = None
        auth.clock.now += 601
        assert await redeemed(OTHER) == 401

    with_auth_server(tmp_path, body)


def test_a_key_set_that_can_not_be_had_is_asked_for_again_after_a_while(tmp_path: Path) -> None:
    caller = OAuthClient(
        "caller", "configured", "Caller", (), "private_key_jwt", frozenset((CLIENT_CREDENTIALS,)), jwks_uri=JWKS
    )

    async def body(auth: AuthServer) -> None:
        async def status(key: JoseKey = KEY) -> int:
            form = signed(client="caller", key=key, now=auth.clock.now)
            return (await auth.token(grant_type="client_credentials", **form)).status

        assert [await status() for _ in range(3)] == [401] * 3
        assert auth.pages.asked == [JWKS]
        auth.pages.held[JWKS] = {"keys": [*jose.format_jwks([KEY])["keys"], *[{"kty": "EC"}] * 10]}
        auth.clock.now += 31
        assert await status() == 401  # eleven keys
        auth.pages.held[JWKS] = jose.format_jwks([KEY])
        auth.clock.now += 31
        assert await status() == 200
        auth.pages.held.clear()
        assert await status(OTHER) == 401

    with_auth_server(tmp_path, body, configured_clients={"caller": caller})


def test_a_signature_is_verified_in_neither_the_loop_nor_the_states_thread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SEC-18: a stranger's request delays no other."""
    threads: list[str] = []
    verify = jose.verify

    def noted(*given: Any, **named: Any) -> dict[str, Any]:
        threads.append(threading.current_thread().name)
        return verify(*given, **named)

    async def body(auth: AuthServer) -> None:
        monkeypatch.setattr(jose, "verify", noted)
        assert (await auth.token(grant_type="client_credentials", **signed())).status == 200
        assert (await auth.token(encoded("agent", SECRET), grant_type=ID_JAG, assertion=jag())).status == 200
        assert len(threads) == 2
        assert not {"state", threading.main_thread().name} & set(threads)
        await auth.token(grant_type="client_credentials", **signed(client="nobody"))
        await auth.token(grant_type="client_credentials", **signed(client="batch"))  # which does not sign
        assert len(threads) == 2

    at_idp(tmp_path, body)


def test_of_several_keys_a_client_says_which(tmp_path: Path) -> None:
    def nameless(client: str) -> dict[str, str]:
        form = signed(client=client, key=JoseKey("", "ES256", KEY.material))
        _, claims, _ = form["client_assertion"].split(".")
        body = f"{packed({'alg': 'ES256'})}.{claims}".encode()
        signature = jws.JWSRegistry(algorithms=["ES256"]).get_alg("ES256").sign(body, KEY.material)
        return {**form, "client_assertion": f"{body.decode()}.{packed(signature)}"}

    two, one = (
        OAuthClient(
            id, "configured", id, (), "private_key_jwt", frozenset((CLIENT_CREDENTIALS,)), jwks=jose.format_jwks(keys)
        )
        for id, keys in (("two", [KEY, OTHER]), ("one", [KEY]))
    )

    async def body(auth: AuthServer) -> None:
        for client, status in (("one", 200), ("two", 401)):
            assert (await auth.token(grant_type="client_credentials", **nameless(client))).status == status
        assert (await auth.token(grant_type="client_credentials", **signed(client="two"))).status == 200

    with_auth_server(tmp_path, body, configured_clients={"one": one, "two": two})


# client_credentials (TK-08)


def test_a_configured_client_may_speak_for_itself(tmp_path: Path) -> None:
    """TK-08: with a signature or a secret, no refresh token, the subject is the client."""

    async def body(auth: AuthServer) -> None:
        answer = await auth.token(grant_type="client_credentials", scope="tools:web tools:read", **signed())
        assert answer.status == 200
        assert {**answer.body, "access_token": "…"} == {
            "access_token": "…",
            "token_type": "Bearer",
            "expires_in": 895,  # 5 before they end
            "scope": "tools:read tools:web",
        }
        claims = await auth.tokens.claims(answer.body["access_token"])
        assert (claims["sub"], claims["client_id"], claims["aud"]) == ("nightly", "nightly", MCP)
        secret = await auth.token(encoded("batch", SECRET), grant_type="client_credentials", resource=f"{URL}/sse")
        assert secret.body["scope"] == "tools:read"
        form = {"token": answer.body["access_token"]}
        assert (await auth.authorization.revoke(pairs({**form, **signed()}), {})).status == 200
        assert not await auth.works(answer.body["access_token"])

    with_auth_server(tmp_path, body, configured_clients=CONFIGURED)


def test_no_other_client_speaks_for_itself_and_none_for_others(tmp_path: Path) -> None:
    async def body(auth: AuthServer) -> None:
        kept = await auth.registered(
            token_endpoint_auth_method="client_secret_post", grant_types=["client_credentials"]
        )
        own = {"client_id": kept["client_id"], "client_secret": kept["client_secret"]}
        answer = await auth.token(grant_type="client_credentials", **own)
        assert (answer.status, answer.body["error"]) == (400, "unauthorized_client")
        public = await auth.token(grant_type="client_credentials", client_id=await auth.client())
        assert (public.status, public.body["error"]) == (401, "invalid_client")
        office = await auth.token(encoded("office", SECRET), grant_type="client_credentials")
        assert office.body["error"] == "unauthorized_client"
        for scope, error in (("tools:shell", "invalid_scope"), ("admin", "invalid_scope")):
            answer = await auth.token(encoded("batch", SECRET), grant_type="client_credentials", scope=scope)
            assert answer.body["error"] == error
        foreign = {"grant_type": "client_credentials", "resource": "https://other.example"}
        assert (await auth.token(encoded("batch", SECRET), **foreign)).body["error"] == "invalid_target"
        assert await auth.rows("oauth_access") == 0

    with_auth_server(tmp_path, body, configured_clients=CONFIGURED)


# ID-JAG (TK-09)

IDP = "https://idp.example"
IDP_KEY = jose.generate_key()
AGENT = OAuthClient(
    "agent", "configured", "Agent", (), "client_secret_basic", frozenset((ID_JAG,)), secret=hash_secret(SECRET)
)


def jag(key: JoseKey = IDP_KEY, typ: str = "oauth-id-jag+jwt", **more: Any) -> str:
    given = {"iss": IDP, "sub": "ada@corp", "aud": URL, "client_id": "agent", "resource": MCP, "scope": "tools:read"}
    return assertion("", key, typ=typ, **{**given, **more})


def at_idp(tmp_path: Path, body: Any, **options: Any) -> None:
    async def prepared(auth: AuthServer) -> None:
        jwks = f"{IDP}/jwks"
        auth.pages.held[f"{IDP}/.well-known/oauth-authorization-server"] = {"issuer": IDP, "jwks_uri": jwks}
        auth.pages.held[jwks] = jose.format_jwks([IDP_KEY])
        await body(auth)

    configured = {**CONFIGURED, "agent": AGENT}
    with_auth_server(tmp_path, prepared, configured_clients=configured, enterprise_issuers=(IDP,), **options)


def test_an_identity_provider_speaks_for_a_person(tmp_path: Path) -> None:
    """TK-09."""

    async def body(auth: AuthServer) -> None:
        for more, scope in (
            ({}, "tools:read"),
            ({"resource": [MCP]}, "tools:read"),
            ({"resource": f"{URL}/"}, "tools:read"),
            ({"scope": "tools:read tools:web openid"}, "tools:read tools:web"),
        ):
            answer = await auth.token(encoded("agent", SECRET), grant_type=ID_JAG, assertion=jag(**more))
            assert answer.status == 200, answer
            assert answer.body["scope"] == scope
            assert "refresh_token" not in answer.body
            claims = await auth.tokens.claims(answer.body["access_token"])
            assert (claims["sub"], claims["client_id"]) == (derive_subject(IDP, "ada@corp"), "agent")
        narrowed = {"assertion": jag(scope="tools:read tools:web"), "scope": "tools:web tools:shell"}
        answer = await auth.token(encoded("agent", SECRET), grant_type=ID_JAG, **narrowed)
        assert answer.body["scope"] == "tools:web"
        usual = ["authorization_code", "refresh_token"]
        assert (await auth.authorization.metadata())["grant_types_supported"] == [*usual, CLIENT_CREDENTIALS, ID_JAG]

    at_idp(tmp_path, body)


BAD_JAGS: dict[str, dict[str, Any]] = {
    "by a foreign key": {"key": OTHER},
    "by a foreign key of the same name": {"key": JoseKey(IDP_KEY.kid, "ES256", OTHER.material)},
    "of an issuer nobody trusts": {"iss": "https://evil.example"},
    "of no issuer": {"iss": None},
    "of a number": {"iss": 7},
    "of another type": {"typ": "JWT"},
    "an access token": {"typ": "at+jwt"},
    "for somebody else": {"aud": "https://other.example"},
    "for us and somebody else": {"aud": [URL, "https://other.example"]},
    "for the token endpoint": {"aud": f"{URL}/token"},
    "for another client": {"client_id": "office"},
    "for no client": {"client_id": None},
    "for another resource": {"resource": "https://other.example/mcp"},
    "for another resource too": {"resource": [MCP, "https://other.example/mcp"]},
    "for no resource": {"resource": None},
    "about nobody": {"sub": None},
    "about a number": {"sub": 7},
    "expired": {"exp": int(START) - 61},
    "good for ever": {"exp": int(START) + 10**8},
    "not issued": {"iat": None},
    "without an id": {"jti": None},
    "bound to a key": {"cnf": {"jkt": "x"}},
}


@pytest.mark.parametrize("more", BAD_JAGS.values(), ids=BAD_JAGS)
def test_an_invalid_assertion_of_a_provider_gets_no_token(tmp_path: Path, more: dict[str, Any]) -> None:
    """TK-09."""

    async def body(auth: AuthServer) -> None:
        answer = await auth.token(encoded("agent", SECRET), grant_type=ID_JAG, assertion=jag(**more))
        assert (answer.status, answer.body["error"]) == (400, "invalid_grant")
        assert await auth.rows("oauth_access") == 0
        assert (await auth.token(encoded("agent", SECRET), grant_type=ID_JAG, assertion=jag())).status == 200

    at_idp(tmp_path, body)


def test_a_providers_assertion_counts_once_and_for_an_authenticated_client(tmp_path: Path) -> None:
    """TK-09."""

    async def body(auth: AuthServer) -> None:
        word = jag()
        for headers, form in (
            ({}, {"client_id": "agent"}),
            (encoded("agent", "another"), {}),
            ({}, {"client_id": await auth.client(grant_types=[ID_JAG])}),
        ):
            assert (await auth.token(headers, grant_type=ID_JAG, assertion=word, **form)).status == 401
        other = await auth.token(encoded("office", SECRET), grant_type=ID_JAG, assertion=word)
        assert other.body["error"] == "unauthorized_client"
        answers = await asyncio.gather(
            *(auth.token(encoded("agent", SECRET), grant_type=ID_JAG, assertion=word) for _ in range(8))
        )
        assert sorted(answer.status for answer in answers) == [200] + [400] * 7
        for scope, error in (("tools:shell", "invalid_scope"), ("admin", "invalid_scope")):
            form = {"assertion": jag(), "scope": scope}
            assert (await auth.token(encoded("agent", SECRET), grant_type=ID_JAG, **form)).body["error"] == error
        assert (await auth.token(encoded("agent", SECRET), grant_type=ID_JAG)).body["error"] == "invalid_grant"

    at_idp(tmp_path, body)


def test_a_provider_that_says_nothing_of_scopes_has_granted_the_least(tmp_path: Path) -> None:
    """TK-09."""

    async def body(auth: AuthServer) -> None:
        for asked, given in ((None, "tools:read"), ("tools:read tools:shell", "tools:read"), ("tools:shell", None)):
            form = {"grant_type": ID_JAG, "assertion": jag(scope=None), "scope": asked}
            answer = await auth.token(encoded("agent", SECRET), **form)
            assert answer.body.get("scope") == given, answer
        form = {"grant_type": ID_JAG, "assertion": jag(scope=["tools:shell"])}
        assert (await auth.token(encoded("agent", SECRET), **form)).body["error"] == "invalid_scope"

    at_idp(tmp_path, body)


def test_ending_a_person_ends_what_a_provider_said_for_them(tmp_path: Path) -> None:
    """TK-09."""

    async def body(auth: AuthServer) -> None:
        form = {"grant_type": ID_JAG}
        mine, other = [
            (await auth.token(encoded("agent", SECRET), **form, assertion=jag(sub=who))).body["access_token"]
            for who in ("ada@corp", "bob@corp")
        ]
        pairs = [(derive_subject(IDP, who), "agent") for who in ("ada@corp", "bob@corp")]
        assert await auth.authorization.find_valid_keys(pairs) == set(pairs)
        await auth.authorization.grants.revoke_all(subject=pairs[0][0])
        assert [await auth.works(token) for token in (mine, other)] == [False, True]
        assert await auth.authorization.find_valid_keys(pairs) == {pairs[1]}

    at_idp(tmp_path, body)


def test_a_client_with_a_providers_grant_counts_as_approved(tmp_path: Path) -> None:
    """TK-09, RG-05."""

    async def body(auth: AuthServer) -> None:
        kept = await auth.registered(token_endpoint_auth_method="client_secret_post", grant_types=[ID_JAG])
        own = {"client_id": kept["client_id"], "client_secret": kept["client_secret"], "grant_type": ID_JAG}
        for _ in range(3):
            word = jag(client_id=kept["client_id"], now=auth.clock.now)
            assert (await auth.token(**own, assertion=word)).status == 200
            auth.clock.now += UNAPPROVED_LIFETIME - 1

    at_idp(tmp_path, body)


def test_one_client_can_not_fill_the_state_with_assertions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("toolgate.server.auth.oauth_server.server.MAX_USED", 3)

    async def body(auth: AuthServer) -> None:
        async def status(**more: Any) -> int:
            form = signed(now=auth.clock.now, exp=int(auth.clock.now) + 3_600, **more)
            return (await auth.token(grant_type="client_credentials", **form)).status

        assert [await status() for _ in range(5)] == [200] * 3 + [503] * 2
        assert (await auth.token(encoded("agent", SECRET), grant_type=ID_JAG, assertion=jag())).status == 200
        auth.clock.now += LONGEST + jose.LEEWAY
        assert await status() == 200

    at_idp(tmp_path, body)


def test_a_provider_that_is_out_of_reach_is_no_reason_to_ask_a_person(tmp_path: Path) -> None:
    async def body(auth: AuthServer) -> None:
        auth.pages.held.clear()
        answer = await auth.token(encoded("agent", SECRET), grant_type=ID_JAG, assertion=jag())
        assert (answer.status, answer.body["error"]) == (503, "temporarily_unavailable")

    at_idp(tmp_path, body)


# What the server says of itself


def nulls(value: Any) -> bool:
    if isinstance(value, dict):
        return any(map(nulls, value.values()))
    return any(map(nulls, value)) if isinstance(value, list) else value is None


def test_as_01_as_03_as_04_the_metadata_tells_what_works(tmp_path: Path) -> None:
    async def body(auth: AuthServer) -> None:
        told = await auth.authorization.metadata()
        assert not nulls(told)
        assert told["issuer"] == URL
        endpoints = {name: url for name, url in told.items() if name.endswith(("_endpoint", "_uri"))}
        assert endpoints == {
            "authorization_endpoint": f"{URL}/authorize",
            "token_endpoint": f"{URL}/token",
            "registration_endpoint": f"{URL}/register",
            "revocation_endpoint": f"{URL}/revoke",
            "introspection_endpoint": f"{URL}/introspect",
            "jwks_uri": f"{URL}/jwks",
        }
        assert told["code_challenge_methods_supported"] == ["S256"]
        assert told["response_types_supported"] == ["code"]
        assert "none" in told["token_endpoint_auth_methods_supported"]
        assert "ES256" in told["token_endpoint_auth_signing_alg_values_supported"]
        assert told["revocation_endpoint_auth_methods_supported"] == list(AUTH_METHODS)
        assert "none" not in told["introspection_endpoint_auth_methods_supported"]
        assert "authorization_grant_profiles_supported" not in told
        assert told["grant_types_supported"] == ["authorization_code", "refresh_token"]
        assert told["authorization_response_iss_parameter_supported"] is True
        assert told["client_id_metadata_document_supported"] is True
        assert told["scopes_supported"][-1] == "offline_access"
        assert told["subject_types_supported"] and told["id_token_signing_alg_values_supported"]

    with_auth_server(tmp_path, body)


def test_as_03_tk_09_the_metadata_names_what_an_identity_provider_and_clients_for_themselves_may(
    tmp_path: Path,
) -> None:
    async def body(auth: AuthServer) -> None:
        told = await auth.authorization.metadata()
        assert told["grant_types_supported"] == ["authorization_code", "refresh_token", CLIENT_CREDENTIALS, ID_JAG]
        assert told["authorization_grant_profiles_supported"] == ["urn:ietf:params:oauth:grant-profile:id-jag"]

    at_idp(tmp_path, body)


@pytest.mark.parametrize("registration", ["open", "closed"])
def test_as_03_the_metadata_names_the_ways_of_clients_that_may_come(tmp_path: Path, registration: str) -> None:
    """If only the operator's clients may connect, it names theirs; RFC 8414 section 3.2 allows no empty lists."""

    async def body(auth: AuthServer) -> None:
        async def told() -> Any:
            metadata = await auth.authorization.metadata()
            assert all(value != [] for value in metadata.values())
            return metadata["token_endpoint_auth_methods_supported"]

        assert await told() == list(AUTH_METHODS)
        await auth.authorization.grants.add_client(OFFICE)
        assert ("none" in await told()) == (registration == "open")
        assert "client_secret_basic" in await told()

    with_auth_server(tmp_path, body, registration=registration)


def test_as_04_no_answer_has_a_null_or_words_of_the_caller(tmp_path: Path) -> None:
    """Descriptions are fixed sentences that every client's parser takes."""

    async def body(auth: AuthServer) -> None:
        client = await auth.client()
        evil = 'e"vil\\\u2603<script>'
        forms: list[dict[str, str]] = [
            {},
            {"grant_type": evil},
            {"grant_type": "authorization_code", "client_id": evil, "code": evil},
            {"grant_type": "authorization_code", "client_id": client, "code": evil, "code_verifier": evil},
            {"grant_type": "refresh_token", "client_id": client, "refresh_token": evil, "scope": evil},
            {"grant_type": "client_credentials", "client_id": client, "scope": evil, "resource": evil},
            {"grant_type": ID_JAG, "client_id": client, "assertion": evil},
        ]
        answers = [await auth.token(**form) for form in forms]
        answers.append(await auth.authorization.register({"redirect_uris": [evil]}, evil))
        for answer in answers:
            assert answer.status in (400, 401)
            assert set(answer.body) == {"error", "error_description"}
            assert re.fullmatch(r"[\x20-\x21\x23-\x5b\x5d-\x7e]+", answer.body["error_description"])
            assert "vil" not in str(answer.body)

    with_auth_server(tmp_path, body)
