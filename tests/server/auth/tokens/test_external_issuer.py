"""Access tokens of an external issuer: its metadata and keys, valid tokens, and outages."""

import asyncio
import json
import warnings
from typing import Any

import pytest

from tests.server.auth.forged_tokens import (
    AUDIENCE,
    CLAIMS,
    EDWARDS,
    ISSUER,
    KEY,
    OTHER,
    RSA,
    START,
    THEIRS,
    TRICKS,
    WEAK,
    Clock,
    good,
    packed,
    refused,
    run,
)
from toolgate.server.auth.tokens import jose
from toolgate.server.auth.tokens.access_tokens import UnavailableError, hash_token
from toolgate.server.auth.tokens.external_issuer import PAUSE, RENEW, RETRY, ExternalTokens, metadata_urls
from toolgate.server.auth.tokens.jose import JoseKey
from toolgate.server.base.principals.principal import Principal
from toolgate.tools.api.context.services import Page
from toolgate.tools.api.outbound.errors import PageUnreachableError


class Web:
    """A fake issuer on the web: documents by URL, with a count of fetches."""

    def __init__(self, *keys: JoseKey, issuer: str = THEIRS) -> None:
        self.issuer = issuer
        self.documents: dict[str, Any] = {
            metadata_urls(issuer)[0]: {"issuer": issuer, "jwks_uri": "https://keys.example/jwks"},
            "https://keys.example/jwks": jose.format_jwks(keys),
        }
        self.fetched: list[str] = []
        self.down = False

    def rotate(self, *keys: JoseKey) -> None:
        self.documents["https://keys.example/jwks"] = jose.format_jwks(keys)

    async def fetch(self, url: str, **how: Any) -> Page:
        assert how["redirects"] == 0 and how["timeout"] <= 10 and how["limit"] <= 2**20
        self.fetched.append(url)
        await asyncio.sleep(0)
        if self.down:
            raise PageUnreachableError(f"no answer from {url}")
        if url not in self.documents:
            return Page(url, 404, {}, b"", False)
        return Page(url, 200, {"content-type": "application/json"}, json.dumps(self.documents[url]).encode(), False)


def theirs(web: Web, clock: Clock | None = None) -> ExternalTokens:
    return ExternalTokens(web.issuer, AUDIENCE, web.fetch, now=clock or Clock())


@pytest.mark.parametrize("key", [KEY, RSA, EDWARDS], ids=["ES256", "RS256", "Ed25519"])
@pytest.mark.parametrize("typ", ["at+jwt", "JWT"])
def test_an_outside_issuers_token_is_taken(key: JoseKey, typ: str) -> None:
    web = Web(OTHER, key)
    principal = run(theirs(web).verify(jose.sign(good(THEIRS), key, typ)))
    assert principal == Principal(THEIRS, "ada", "c", frozenset({"tools:read", "tools:web"}))


def test_the_older_name_of_its_algorithm_is_known_too() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        key = JoseKey("ed-2", "EdDSA", EDWARDS.material)
        token = jose.sign(good(THEIRS), key, "at+jwt")
    assert run(theirs(Web(key)).verify(token)).subject == "ada"


OURS_ALONE = ("expired this second", "no id", "an id that is a number")  # its clock may differ, and it needs no ids
THEIR_CLAIMS = {name: claims for name, claims in CLAIMS.items() if name not in OURS_ALONE}


@pytest.mark.parametrize("claims", THEIR_CLAIMS.values(), ids=THEIR_CLAIMS)
def test_pr_09_an_outside_token_with_a_wrong_claim_is_refused(claims: dict[str, Any]) -> None:
    told = good(**{"issuer": THEIRS, **claims})
    run(refused(theirs(Web(KEY)).verify, [jose.sign(told, KEY, "at+jwt")]))


@pytest.mark.parametrize("token", TRICKS.values(), ids=TRICKS)
def test_sec_13_no_trick_of_a_header_gets_an_outside_token_in(token: str) -> None:
    run(refused(theirs(Web(KEY, issuer=ISSUER)).verify, [token]))


OTHER_KINDS: dict[str, dict[str, Any]] = {
    "an ID token": {"nonce": "n"},
    "one by its hash": {"at_hash": "h"},
    "a logout token": {"events": {"http://schemas.openid.net/event/backchannel-logout": {}}},
    "Keycloak's ID token": {"typ": "ID"},
    "Keycloak's refresh token": {"typ": "Refresh"},
    "Cognito's ID token": {"token_use": "id"},
}


@pytest.mark.parametrize("claims", OTHER_KINDS.values(), ids=OTHER_KINDS)
def test_sec_07_a_token_made_for_something_else_is_no_access_token(claims: dict[str, Any]) -> None:
    run(refused(theirs(Web(KEY)).verify, [jose.sign(good(THEIRS, **claims), KEY, "JWT")]))


def test_an_id_token_is_for_a_client_and_not_for_us() -> None:
    run(refused(theirs(Web(KEY)).verify, [jose.sign(good(THEIRS, aud="c"), KEY, "JWT")]))


def test_the_issuers_own_endpoint_may_stand_beside_us_in_the_audience() -> None:
    web = Web(KEY)
    web.documents[metadata_urls(THEIRS)[0]]["userinfo_endpoint"] = f"{THEIRS}/userinfo"
    both = jose.sign(good(THEIRS, aud=[AUDIENCE[0], f"{THEIRS}/userinfo"]), KEY, "JWT")
    assert run(theirs(web).verify(both)).subject == "ada"
    alone = jose.sign(good(THEIRS, aud=[f"{THEIRS}/userinfo"]), KEY, "JWT")
    run(refused(theirs(web).verify, [alone]))


@pytest.mark.parametrize(
    ("claims", "granted"),
    [
        ({"scope": "tools:read"}, {"tools:read"}),
        ({"scope": ["tools:read", "tools:web"]}, {"tools:read", "tools:web"}),
        ({"scope": None, "scp": "tools:web"}, {"tools:web"}),
        ({"scope": None, "scp": ["tools:web"]}, {"tools:web"}),
        ({"scope": None}, set()),
    ],
)
def test_scopes_are_read_as_issuers_spell_them(claims: dict[str, Any], granted: set[str]) -> None:
    assert run(theirs(Web(KEY)).verify(jose.sign(good(THEIRS, **claims), KEY, "JWT"))).scopes == granted


def test_the_client_is_read_as_issuers_spell_it() -> None:
    for name in ("client_id", "azp", "cid", "appid"):
        token = jose.sign(good(THEIRS, **{"client_id": None, name: "me"}), KEY, "JWT")
        assert run(theirs(Web(KEY)).verify(token)).client == "me"


def test_its_clock_may_differ_by_a_minute_and_no_more() -> None:
    for claims in ({"exp": START - 50}, {"nbf": START + 50}, {"iat": START + 50}):
        assert run(theirs(Web(KEY)).verify(jose.sign(good(THEIRS, **claims), KEY, "JWT"))).subject == "ada"
    for claims in ({"exp": START - 61}, {"nbf": START + 61}, {"iat": START + 61}):
        run(refused(theirs(Web(KEY)).verify, [jose.sign(good(THEIRS, **claims), KEY, "JWT")]))


def test_the_metadata_is_found_where_either_standard_has_it() -> None:
    assert metadata_urls("https://a.example") == [
        "https://a.example/.well-known/oauth-authorization-server",
        "https://a.example/.well-known/openid-configuration",
    ]
    places = metadata_urls(THEIRS)
    assert places == [
        "https://login.example/.well-known/oauth-authorization-server/realms/a",
        "https://login.example/.well-known/openid-configuration/realms/a",
        "https://login.example/realms/a/.well-known/openid-configuration",
    ]
    token = jose.sign(good(THEIRS), KEY, "JWT")
    for place in places:
        web = Web(KEY)
        web.documents[place] = web.documents.pop(places[0])
        assert run(theirs(web).verify(token)).subject == "ada"


@pytest.mark.parametrize(
    "document",
    [
        {"issuer": "https://evil.example", "jwks_uri": "https://keys.example/jwks"},
        {"issuer": THEIRS + "/", "jwks_uri": "https://keys.example/jwks"},
        {"issuer": THEIRS},
        {"issuer": THEIRS, "jwks_uri": "http://keys.example/jwks"},
        {"issuer": THEIRS, "jwks_uri": "file:///etc/passwd"},
        {"issuer": THEIRS, "jwks_uri": 7},
        {"issuer": THEIRS, "jwks_uri": "https://keys.example/none"},
        ["nonsense"],
    ],
)
def test_metadata_that_is_not_the_issuers_gives_no_keys(document: Any) -> None:
    web = Web(KEY)
    web.documents[metadata_urls(THEIRS)[0]] = document
    for unsafe in ("http://keys.example/jwks", "file:///etc/passwd"):
        web.documents[unsafe] = jose.format_jwks([KEY])
    with pytest.raises(UnavailableError):
        run(theirs(web).verify(jose.sign(good(THEIRS), KEY, "JWT")))


def test_weak_foreign_and_secret_keys_of_a_set_are_passed_over() -> None:
    listed = [
        {**WEAK, "kid": "weak", "alg": "RS256", "use": "sig"},
        {**WEAK, "kid": "leading zeros", "n": packed(bytes(256) + b"\xc1" * 128)},
        {**WEAK, "kid": "long", "n": packed(b"\xc1" * 513)},
        {**WEAK, "kid": "endless", "n": packed(b"\xc1" * 100_000)},
        {**RSA.to_public_jwk(), "kid": "large exponent", "e": packed(b"\x01" * 5)},
        {**RSA.to_public_jwk(), "kid": "no number", "n": "%"},
        {"kty": "oct", "k": "c2VjcmV0", "kid": "secret", "alg": "HS256"},
        {**KEY.to_public_jwk(), "use": "enc"},
        {"kty": "EC", "crv": "P-521", "x": "x", "y": "y", "kid": "large"},
        {"kty": "EC", "crv": "P-256", "x": "AA", "y": "AA", "kid": "broken"},
        {**RSA.to_public_jwk(), "alg": "RS512"},
        "nonsense",
        OTHER.to_public_jwk(),
    ]
    assert [key.kid for key in jose.parse_jwks({"keys": listed})] == [OTHER.kid]
    with pytest.raises(ValueError, match="more than 7 keys"):
        jose.parse_jwks({"keys": listed}, 7)
    assert [key.is_private for key in jose.parse_jwks({"keys": [KEY.to_private_jwk()]})] == [False]
    for nonsense in ({}, [], None, {"keys": {}}):
        with pytest.raises(ValueError, match="JWKS"):
            jose.parse_jwks(nonsense)


def test_a_new_key_is_fetched_when_a_token_names_it_once_and_seldom() -> None:
    async def scenario() -> None:
        clock, web = Clock(), Web(KEY)
        tokens = theirs(web, clock)
        await tokens.verify(jose.sign(good(THEIRS), KEY, "JWT"))
        web.rotate(KEY, OTHER)
        clock.now += PAUSE
        before = len(web.fetched)
        new = [jose.sign(good(THEIRS, sub=f"{n}"), OTHER, "JWT") for n in range(8)]
        found = await asyncio.gather(*(tokens.verify(token) for token in new))  # all at once: one fetch
        assert [principal.subject for principal in found] == [f"{n}" for n in range(8)]
        assert len(web.fetched) == before + 1
        clock.now += 1
        unknown = [jose.sign(good(THEIRS), jose.generate_key(), "JWT") for _ in range(20)]
        for token in unknown:  # each may be signed by a key as new as this second
            with pytest.raises(UnavailableError) as caught:
                await tokens.verify(token)
            assert caught.value.wait == PAUSE - 1
        assert len(web.fetched) == before + 1
        clock.now += PAUSE
        await refused(tokens.verify, unknown)  # one look answers for all
        assert len(web.fetched) == before + 2

    run(scenario())


def test_a_clock_that_was_set_back_freezes_no_keys() -> None:
    async def scenario() -> None:
        clock, web = Clock(), Web(KEY)
        tokens = theirs(web, clock)
        await tokens.verify(jose.sign(good(THEIRS), KEY, "JWT"))
        clock.now -= 86_400
        web.rotate(OTHER)
        fresh = good(THEIRS, iat=clock.now, exp=clock.now + 900)
        assert (await tokens.verify(jose.sign(fresh, OTHER, "JWT"))).subject == "ada"
        clock.now -= 86_400
        assert tokens._issuer.is_due(clock.now)

    run(scenario())


def test_a_malformed_token_is_refused_while_the_issuer_is_down() -> None:
    web = Web(KEY)
    web.down = True
    tokens = theirs(web)
    ours = jose.sign(good(ISSUER), KEY, "JWT")
    odd = jose.sign(good(THEIRS), KEY, "other+jwt")
    run(refused(tokens.verify, ["x", "a.b.c", TRICKS["HS256 with the public key"], odd, ours]))
    assert not web.fetched


def test_a_key_set_that_is_too_large_is_called_that(caplog: pytest.LogCaptureFixture) -> None:
    web = Web(KEY)
    whole = web.fetch

    async def cut(url: str, **how: Any) -> Page:
        page = await whole(url, **how)
        return Page(page.url, page.status, page.headers, page.body, url.endswith("/jwks"))

    with pytest.raises(UnavailableError):
        run(ExternalTokens(THEIRS, AUDIENCE, cut, now=Clock()).verify(jose.sign(good(THEIRS), KEY, "JWT")))
    assert "keys.example/jwks is larger than 512 KiB" in caplog.text


def test_a_principal_of_an_outside_token_knows_when_it_ends() -> None:
    assert run(theirs(Web(KEY)).verify(jose.sign(good(THEIRS), KEY, "JWT"))).until == good(THEIRS)["exp"] + 60


def test_a_token_of_a_removed_key_is_refused_after_the_next_fetch() -> None:
    async def scenario() -> None:
        clock, web = Clock(), Web(KEY)
        tokens = theirs(web, clock)
        old = jose.sign(good(THEIRS, exp=START + 10_000), KEY, "JWT")
        await tokens.verify(old)
        web.rotate(OTHER)
        assert tokens.find_cached(hash_token(old.encode())) is not None
        clock.now += RENEW
        await tokens.verify(old)  # starts the fetch, and does not wait for it
        await tokens._issuer.refresh_keys(RENEW)
        assert tokens.find_cached(hash_token(old.encode())) is None
        await refused(tokens.verify, [old])
        await tokens.verify(jose.sign(good(THEIRS, exp=START + 10_000), OTHER, "JWT"))
        assert tokens.find_cached(hash_token(old.encode())) is None
        await tokens.close()

    run(scenario())


def test_an_issuer_that_is_down_invalidates_no_token_with_a_known_key() -> None:
    async def scenario() -> None:
        clock, web = Clock(), Web(KEY)
        tokens = theirs(web, clock)
        await tokens.verify(jose.sign(good(THEIRS), KEY, "JWT"))
        web.down = True
        for step in range(1, 4):
            clock.now = START + step * RENEW
            fresh = jose.sign(good(THEIRS, iat=clock.now, exp=clock.now + 900, sub=f"{step}"), KEY, "JWT")
            assert (await tokens.verify(fresh)).subject == f"{step}"
            await tokens._issuer.refresh_keys(RENEW)
        await tokens.close()

    run(scenario())


def test_without_any_key_it_says_when_to_come_back_and_asks_the_issuer_seldom() -> None:
    async def scenario() -> None:
        clock, web = Clock(), Web(KEY)
        web.down = True
        tokens = theirs(web, clock)
        token = jose.sign(good(THEIRS), KEY, "JWT")
        for _ in range(10):
            with pytest.raises(UnavailableError) as caught:
                await tokens.verify(token)
            assert caught.value.wait == RETRY
        assert web.fetched == metadata_urls(THEIRS)
        web.down = False
        clock.now += RETRY
        assert (await tokens.verify(token)).subject == "ada"

    run(scenario())


def test_an_outside_token_is_remembered_until_its_issuers_keys_are_due_or_others() -> None:
    async def scenario() -> None:
        clock, web = Clock(), Web(KEY)
        tokens = theirs(web, clock)
        token = jose.sign(good(THEIRS), KEY, "JWT")
        assert tokens.find_cached(hash_token(token.encode())) is None
        first = await tokens.verify(token)
        held = tokens.find_cached(hash_token(token.encode()))
        assert held is not None and held.principal is first
        await tokens._issuer.refresh_keys(0)
        assert tokens.find_cached(hash_token(token.encode())) is None
        await tokens.verify(token)
        held = tokens.find_cached(hash_token(token.encode()))
        assert held is not None
        clock.now += RENEW
        assert tokens.find_cached(hash_token(token.encode())) is None

    run(scenario())
