"""Our own access tokens: which are valid, for how long, and how they are revoked."""

import base64
import json
import time
from typing import Any

import msgspec
import pytest

from tests.server.auth.forged_tokens import (
    AUDIENCE,
    CLAIMS,
    EDWARDS,
    GOOD,
    ISSUER,
    KEY,
    OTHER,
    RSA,
    START,
    THEIRS,
    TRICKS,
    Clock,
    good,
    refused,
    run,
    with_header,
)
from toolgate.server.auth.tokens import jose
from toolgate.server.auth.tokens.access_tokens import (
    FRESH,
    LEEWAY,
    LIFETIME,
    OWN_ISSUER,
    CachedToken,
    OwnTokens,
    TokenCache,
    UnavailableError,
    hash_token,
)
from toolgate.server.auth.tokens.jose import JoseKey
from toolgate.server.base.principals.principal import LOCAL, Principal


class Stored:
    """A server's keys and its denied tokens."""

    def __init__(self, *keys: JoseKey) -> None:
        self.keys = list(keys)
        self.denied: list[str] = []
        self.broken = False
        self.looks = 0

    async def active(self) -> JoseKey:
        return self.keys[0]

    async def public(self) -> list[JoseKey]:
        self.looks += 1
        if self.broken:
            raise OSError("the disk is gone")
        return list(self.keys)

    async def list_denied(self) -> list[str]:
        return self.denied


def ours(stored: Stored, clock: Clock | None = None) -> OwnTokens:
    return OwnTokens(ISSUER, AUDIENCE, stored, stored.list_denied, now=clock or Clock())


# -- who calls


def test_a_minted_token_names_person_client_and_scopes() -> None:
    async def scenario() -> None:
        tokens = ours(Stored(KEY))
        minted = await tokens.mint("ada", "client-1", {"tools:web", "tools:read"})
        assert await tokens.verify(minted.token) == Principal(
            OWN_ISSUER, "ada", "client-1", frozenset({"tools:read", "tools:web"})
        )
        claims = await tokens.claims(minted.token)
        assert claims == {
            "iss": ISSUER,
            "aud": AUDIENCE[0],
            "sub": "ada",
            "client_id": "client-1",
            "scope": "tools:read tools:web",
            "iat": int(START),
            "exp": int(START) + LIFETIME,
            "jti": minted.jti,
        }
        assert jose.read_header(minted.token) == {"typ": "at+jwt", "alg": "ES256", "kid": KEY.kid}
        assert minted.token not in repr(minted)

    run(scenario())


def test_more_claims_replace_none_of_ours() -> None:
    minted = ours(Stored(KEY)).mint_by_key(KEY, "ada", "c", [], iss="https://evil.example", auth_time=5)
    claims = json.loads(base64.urlsafe_b64decode(minted.token.split(".")[1] + "=="))
    assert (claims["iss"], claims["auth_time"]) == (ISSUER, 5)


def test_a_principals_name_holds_no_word_from_outside_and_tells_people_apart() -> None:
    hostile = "../../etc/passwd\n\x00 é"
    ada = Principal(ISSUER, hostile, "c")
    for name in (ada.name, ada.owner):
        assert name[:2] in ("u-", "o-") and len(name) == 42 and set(name[2:]) <= set("0123456789abcdef")
    others = (
        Principal(ISSUER, "x", "c"),
        Principal(THEIRS, hostile, "c"),
        Principal(ISSUER, hostile, "d"),
    )
    assert [ada.name == other.name for other in others] == [False, False, True]
    assert [ada.owner == other.owner for other in others] == [False, False, False]
    assert Principal("i", "a", "b").owner != Principal("i", "b", "a").owner
    assert (LOCAL.name, LOCAL.owner) == ("local", "local")


def test_a_person_of_ours_is_the_same_under_another_public_url() -> None:
    async def scenario() -> None:
        here, there = (
            ours(Stored(KEY)),
            OwnTokens("http://127.0.0.1:9", ["http://127.0.0.1:9/mcp"], Stored(KEY), nothing),
        )
        seen = [await tokens.verify((await tokens.mint("p-1", "c", [])).token) for tokens in (here, there)]
        assert seen[0] == seen[1] and seen[0].owner == seen[1].owner

    async def nothing() -> list[str]:
        return []

    run(scenario())


def test_sec_16_one_subject_of_two_issuers_is_two_people() -> None:
    assert Principal(ISSUER, "1001", "c").name != Principal(THEIRS, "1001", "c").name


# -- what is refused


@pytest.mark.parametrize("claims", CLAIMS.values(), ids=CLAIMS)
def test_pr_09_a_token_with_a_wrong_claim_is_refused(claims: dict[str, Any]) -> None:
    run(refused(ours(Stored(KEY)).verify, [jose.sign(good(**claims), KEY, "at+jwt")]))


@pytest.mark.parametrize(
    "claims",
    [
        {"client_id": None},
        {"client_id": ""},
        {"client_id": 7},
        {"client_id": "x" * 2_000},
        {"iat": None},
        {"exp": START + LIFETIME + LEEWAY + 1},
        {"exp": START + 115 * 86_400},
        {"iat": START - LIFETIME, "exp": START + LEEWAY + 1},
    ],
)
def test_a_token_we_never_issue_is_refused_though_our_key_signed_it(claims: dict[str, Any]) -> None:
    run(refused(ours(Stored(KEY)).verify, [jose.sign(good(**claims), KEY, "at+jwt")]))


def test_a_token_is_no_younger_than_the_end_of_its_key() -> None:
    retired = msgspec.structs.replace(KEY, retired_at=START - LEEWAY - 1)
    run(refused(ours(Stored(OTHER, retired)).verify, [GOOD]))
    earlier = jose.sign(good(iat=START - 60, exp=START + 60), KEY, "at+jwt")
    assert run(ours(Stored(OTHER, retired)).verify(earlier)).subject == "ada"
    followed = msgspec.structs.replace(KEY, retired_at=START + 60)
    assert run(ours(Stored(OTHER, followed)).verify(GOOD)).subject == "ada"


@pytest.mark.parametrize("typ", ["JWT", "", "at+jwt2", "id+jwt", "refresh+jwt", "oauth-id-jag+jwt", "application/jwt"])
def test_pr_09_a_token_of_another_type_is_refused(typ: str) -> None:
    run(refused(ours(Stored(KEY)).verify, [jose.sign(good(), KEY, typ)]))


@pytest.mark.parametrize("typ", ["at+jwt", "AT+JWT", "application/at+jwt"])
def test_the_type_is_read_as_a_media_type(typ: str) -> None:
    assert run(ours(Stored(KEY)).verify(jose.sign(good(), KEY, typ))).subject == "ada"


@pytest.mark.parametrize("token", TRICKS.values(), ids=TRICKS)
def test_sec_13_no_trick_of_a_header_gets_a_token_in(token: str) -> None:
    run(refused(ours(Stored(KEY)).verify, [token]))


def test_the_tricks_are_told_by_themselves_alone() -> None:
    assert run(ours(Stored(KEY)).verify(with_header())).subject == "ada"
    assert run(ours(Stored(KEY)).verify(GOOD)).subject == "ada"


def test_one_algorithm_is_ours_whatever_keys_there_are() -> None:
    stored = Stored(KEY, RSA, EDWARDS)
    run(refused(ours(stored).verify, [jose.sign(good(), key, "at+jwt") for key in (RSA, EDWARDS)]))


def test_a_token_for_either_transport_is_good() -> None:
    for audience in (*AUDIENCE, [AUDIENCE[1]], list(AUDIENCE)):
        assert run(ours(Stored(KEY)).verify(jose.sign(good(aud=audience), KEY, "at+jwt"))).subject == "ada"


# -- what is remembered, and what takes it away


def test_a_token_is_verified_once_and_remembered_until_it_expires() -> None:
    async def scenario() -> None:
        clock, stored = Clock(), Stored(KEY)
        tokens = ours(stored, clock)
        key = hash_token(GOOD.encode())
        assert tokens.find_cached(key) is None
        first = await tokens.verify(GOOD)
        held = tokens.find_cached(key)
        assert held is not None and held.principal is first
        clock.now = START + 899
        assert tokens.find_cached(key) is None  # keys and denials are to be looked at first
        await tokens.verify(GOOD)
        held = tokens.find_cached(key)
        assert held is not None
        clock.now = START + 900
        assert tokens.find_cached(key) is None
        await refused(tokens.verify, [GOOD])

    run(scenario())


def test_a_denied_token_is_refused_at_once_though_it_was_remembered() -> None:
    async def scenario() -> None:
        tokens = ours(Stored(KEY))
        mine, other = await tokens.mint("ada", "c", []), await tokens.mint("bob", "c", [])
        for minted in (mine, other):
            await tokens.verify(minted.token)
        tokens.deny([mine.jti])
        assert tokens.find_cached(hash_token(mine.token.encode())) is None
        await refused(tokens.verify, [mine.token])
        assert tokens.find_cached(hash_token(other.token.encode())) is not None

    run(scenario())


def test_a_token_denied_by_another_process_is_refused_within_seconds() -> None:
    async def scenario() -> None:
        clock, stored = Clock(), Stored(KEY)
        tokens = ours(stored, clock)
        await tokens.verify(GOOD)
        stored.denied = ["j-1"]
        clock.now += FRESH
        assert tokens.find_cached(hash_token(GOOD.encode())) is None
        await refused(tokens.verify, [GOOD])
        # nor from now on, when keys and denials were just looked at
        assert tokens.find_cached(hash_token(GOOD.encode())) is None

    run(scenario())


def test_a_token_of_a_removed_key_is_refused_within_seconds() -> None:
    async def scenario() -> None:
        clock, stored = Clock(), Stored(KEY)
        tokens = ours(stored, clock)
        await tokens.verify(GOOD)
        stored.keys = [OTHER]
        clock.now += FRESH
        assert tokens.find_cached(hash_token(GOOD.encode())) is None
        await refused(tokens.verify, [GOOD])
        # nor from now on, when keys and denials were just looked at
        assert tokens.find_cached(hash_token(GOOD.encode())) is None

    run(scenario())


def test_a_new_key_is_looked_up_at_a_limited_rate() -> None:
    async def scenario() -> None:
        clock, stored = Clock(), Stored(KEY)
        tokens = ours(stored, clock)
        await tokens.verify(GOOD)
        stored.keys = [OTHER, KEY]
        clock.now += 1.5
        assert (await tokens.verify(jose.sign(good(), OTHER, "at+jwt"))).subject == "ada"
        looks = stored.looks
        await refused(tokens.verify, [jose.sign(good(), jose.generate_key(), "at+jwt") for _ in range(20)])
        assert stored.looks == looks

    run(scenario())


def test_while_the_state_can_t_be_read_what_was_known_holds_and_without_any_it_is_no_401() -> None:
    async def scenario() -> None:
        clock, stored = Clock(), Stored(KEY)
        tokens = ours(stored, clock)
        await tokens.verify(GOOD)
        stored.broken = True
        clock.now += FRESH
        assert (await tokens.verify(GOOD)).subject == "ada"
        with pytest.raises(UnavailableError):
            await ours(stored).verify(GOOD)

    run(scenario())


def test_denying_many_costs_as_much_as_they_are_and_not_what_is_remembered() -> None:
    kept = TokenCache()
    for number in range(10_000):
        principal = Principal(OWN_ISSUER, "ada", "one")
        kept.add(b"%d" % number, CachedToken(principal, 2e9, "key", f"jti-{number}"))
    before = time.process_time()
    kept.deny([f"jti-{number}" for number in range(1, 10_000)])
    assert time.process_time() - before < 1.0
    assert [kept.find(hash_token(b"%d" % number), 0.0) is None for number in range(3)] == [False, True, True]


def test_the_memory_is_bounded_holds_no_token_and_the_longest_unused_gives_way() -> None:
    kept = TokenCache(most=3)
    for name in "abc":
        kept.add(name.encode(), CachedToken(Principal(ISSUER, name, "c"), START + 10, "k", name))
    assert kept.find(hash_token(b"a"), START) is not None
    kept.add(b"d", CachedToken(Principal(ISSUER, "d", "c"), START + 10, "k", "d"))
    assert [kept.find(hash_token(name.encode()), START) is not None for name in "abcd"] == [True, False, True, True]
    assert len(kept) == 3
    assert all(isinstance(key, bytes) and len(key) == 32 for key in kept._held)


def test_no_private_part_of_a_key_is_published() -> None:
    for key in (KEY, RSA, EDWARDS):
        assert set(key.to_public_jwk()) <= {"kty", "crv", "x", "y", "n", "e", "kid", "use", "alg"}
        assert "d" in key.to_private_jwk()
        assert str(key.to_private_jwk()["d"]) not in repr(key)
