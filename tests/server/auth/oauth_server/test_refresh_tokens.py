"""Refresh tokens: rotated at each use, tolerant of races, strict with copies, and ended by revocation."""

import asyncio
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.clients.raw_client import PATIENCE, ROOT
from tests.server.auth.authorization_in_process import (
    ADA,
    BACK,
    BOB,
    VERIFIER,
    AuthServer,
    auth_server,
    basic,
    pairs,
    with_auth_server,
)
from tests.server.auth.authorization_in_process import auth_server as desk_of
from toolgate.server.auth.clients.model import CLIENT_CREDENTIALS, OAuthClient
from toolgate.server.auth.login.accounts import Accounts, Person
from toolgate.server.auth.oauth_server.grant_types import GRACE, GRANT_LIFETIME, MOST_STEPS
from toolgate.server.auth.oauth_server.server import MAX_CLIENT_TOKENS, MAX_TOKENS
from toolgate.server.auth.tokens.access_tokens import LIFETIME, OWN_ISSUER, hash_token
from toolgate.server.auth.tokens.jose import InvalidTokenError
from toolgate.server.base.principals.principal import Principal, derive_subject
from toolgate.server.state import tables
from toolgate.server.state.rows import grants as grant_rows
from toolgate.server.state.rows import people as people_rows
from toolgate.server.state.rows.grants import KEEP_REDEEMED, hash_secret


def test_tk_04_tk_07_a_refresh_token_is_replaced_at_each_use(tmp_path: Path) -> None:
    async def body(auth: AuthServer) -> None:
        client = await auth.client()
        tokens = await auth.granted(client, scope="tools:read tools:web offline_access")
        seen = {tokens["refresh_token"]}
        for _ in range(5):
            auth.clock.now += 900
            answer = await auth.refresh(client, tokens["refresh_token"])
            assert answer.status == 200
            assert answer.headers["Cache-Control"] == "no-store"
            assert (answer.body["expires_in"], answer.body["token_type"]) == (895, "Bearer")
            assert answer.body["scope"] == "tools:read tools:web offline_access"
            assert await auth.works(answer.body["access_token"])
            tokens = answer.body
            seen.add(tokens["refresh_token"])
        assert len(seen) == 6

    with_auth_server(tmp_path, body)


def test_eight_parallel_refreshes_all_work_and_do_not_fork(tmp_path: Path) -> None:
    """TK-04: each answer has a working pair with the same refresh token, so the family stays one line."""

    async def body(auth: AuthServer) -> None:
        client = await auth.client()
        first = (await auth.granted(client))["refresh_token"]
        for _ in range(3):
            answers = await asyncio.gather(*(auth.refresh(client, first) for _ in range(8)))
            assert [answer.status for answer in answers] == [200] * 8
            assert len({answer.body["access_token"] for answer in answers}) == 8
            assert all([await auth.works(answer.body["access_token"]) for answer in answers])
            (first,) = {answer.body["refresh_token"] for answer in answers}
            auth.clock.now += 900
        assert await auth.rows("oauth_refresh WHERE redeemed_at IS NULL") == 1
        assert (await auth.refresh(client, first)).status == 200

    with_auth_server(tmp_path, body)


def test_an_answer_that_was_lost_is_had_again_within_the_grace(tmp_path: Path) -> None:
    async def body(auth: AuthServer) -> None:
        client = await auth.client()
        old = (await auth.granted(client))["refresh_token"]
        newest = old
        for _ in range(4):  # another process goes on meanwhile
            newest = (await auth.refresh(client, newest)).body["refresh_token"]
        auth.clock.now += GRACE
        late = await auth.refresh(client, old)
        assert (late.status, late.body["refresh_token"]) == (200, newest)
        assert (await auth.refresh(client, newest)).status == 200

    with_auth_server(tmp_path, body)


def test_a_reuse_after_the_grace_ends_the_whole_family_and_no_other(tmp_path: Path) -> None:
    """TK-04, SEC-08."""

    async def body(auth: AuthServer) -> None:
        client = await auth.client()
        mine, other = await auth.granted(client), await auth.granted(client, BOB)
        renewed = (await auth.refresh(client, mine["refresh_token"])).body
        auth.clock.now += GRACE + 1
        reuse = await auth.refresh(client, mine["refresh_token"])
        assert (reuse.status, reuse.body["error"]) == (400, "invalid_grant")
        assert (await auth.refresh(client, renewed["refresh_token"])).body["error"] == "invalid_grant"
        assert not await auth.works(renewed["access_token"])
        assert not await auth.works(mine["access_token"])
        assert await auth.authorization.grants.list_grants(ADA) == []
        assert await auth.works(other["access_token"])
        assert (await auth.refresh(client, other["refresh_token"])).status == 200

    with_auth_server(tmp_path, body)


def test_used_refresh_tokens_are_not_kept_and_their_reuse_ends_the_family_all_the_same(tmp_path: Path) -> None:
    """TK-04, SEC-08: the late caller may be the victim."""
    assert KEEP_REDEEMED > GRACE

    async def body(auth: AuthServer) -> None:
        client, other = await auth.client(), await auth.client()
        robbed = (await auth.granted(client))["refresh_token"]
        newest = robbed
        for _ in range(9):
            auth.clock.now += 900
            newest = (await auth.refresh(client, newest)).body["refresh_token"]
        assert await auth.rows("oauth_refresh") == 2
        made_up = f"{robbed.rpartition('.')[0]}.{'x' * 43}"
        for token in (made_up, robbed[:-1], f"{robbed}.x", "..", f"{robbed.partition('.')[0]}.."):
            assert (await auth.refresh(client, token)).body["error"] == "invalid_grant"
        assert (await auth.refresh(other, robbed)).body["error"] == "invalid_grant"
        renewed = (await auth.refresh(client, newest)).body
        assert (await auth.refresh(client, robbed)).body["error"] == "invalid_grant"
        assert not await auth.works(renewed["access_token"])
        assert (await auth.refresh(client, renewed["refresh_token"])).body["error"] == "invalid_grant"

    with_auth_server(tmp_path, body)


def test_expired_rows_are_removed_even_by_a_refused_request(tmp_path: Path) -> None:
    async def body(auth: AuthServer) -> None:
        client = await auth.client()
        await auth.granted(client)
        auth.clock.now += 901
        assert (await auth.token(client_id=client)).body["error"] == "invalid_request"
        assert await auth.rows("oauth_access") == 0

    with_auth_server(tmp_path, body)


def test_the_search_for_the_newest_successor_has_a_limit(tmp_path: Path) -> None:
    async def body(auth: AuthServer) -> None:
        client = await auth.client()
        old = newest = (await auth.granted(client))["refresh_token"]
        for _ in range(MOST_STEPS):
            newest = (await auth.refresh(client, newest)).body["refresh_token"]
        assert (await auth.refresh(client, old)).body["error"] == "invalid_grant"
        assert (await auth.refresh(client, newest)).body["error"] == "invalid_grant"

    with_auth_server(tmp_path, body)


def test_another_clients_refresh_token_is_no_good_and_the_family_stays(tmp_path: Path) -> None:
    """TK-04, TK-05."""

    async def body(auth: AuthServer) -> None:
        ours, theirs = await auth.client(), await auth.client()
        token = (await auth.granted(ours))["refresh_token"]
        newer = (await auth.refresh(ours, token)).body["refresh_token"]
        auth.clock.now += GRACE + 1
        for stolen in (newer, token):
            answer = await auth.refresh(theirs, stolen)
            assert (answer.status, answer.body["error"]) == (400, "invalid_grant")
        unknown = await auth.refresh("nobody", newer)
        assert (unknown.status, unknown.body["error"]) == (401, "invalid_client")
        assert (await auth.refresh(ours, newer)).status == 200

    with_auth_server(tmp_path, body)


@pytest.mark.parametrize(
    ("asked", "given"),
    [
        (None, "tools:read tools:web"),
        ("", "tools:read tools:web"),
        ("tools:web", "tools:web"),
        ("tools:web tools:read openid", "tools:read tools:web"),
        ("offline_access", "tools:read tools:web"),
        ("tools:read tools:shell", None),
        ("tools:shell", None),
        ("admin", None),
        ('"', None),
    ],
)
def test_a_refresh_may_narrow_the_scope_and_never_widen_it(
    tmp_path: Path, asked: str | None, given: str | None
) -> None:
    """TK-06."""

    async def body(auth: AuthServer) -> None:
        client = await auth.client()
        token = (await auth.granted(client, scope="tools:read tools:web"))["refresh_token"]
        answer = await auth.refresh(client, token, scope=asked)
        if given is None:
            assert (answer.status, answer.body["error"]) == (400, "invalid_scope")
            answer = await auth.refresh(client, token)
        else:
            assert answer.body["scope"] == given
            answer = await auth.refresh(client, answer.body["refresh_token"])
        assert answer.body["scope"] == "tools:read tools:web"

    with_auth_server(tmp_path, body)


def test_a_foreign_resource_is_refused_at_a_refresh_and_costs_nothing(tmp_path: Path) -> None:
    """TK-06, SEC-15."""

    async def body(auth: AuthServer) -> None:
        client = await auth.client()
        token = (await auth.granted(client))["refresh_token"]
        answer = await auth.refresh(client, token, resource="https://other.example/mcp")
        assert (answer.status, answer.body["error"]) == (400, "invalid_target")
        assert (await auth.refresh(client, token)).status == 200

    with_auth_server(tmp_path, body)


def test_tk_07_after_ninety_days_a_person_is_asked_again_however_often_was_refreshed(tmp_path: Path) -> None:
    async def body(auth: AuthServer) -> None:
        client = await auth.client()
        token = (await auth.granted(client))["refresh_token"]
        for _ in range(9):
            auth.clock.now += GRANT_LIFETIME / 9 - 1
            answer = await auth.refresh(client, token)
            token = answer.body["refresh_token"]
        auth.clock.now += 10
        answer = await auth.refresh(client, token)
        assert (answer.status, answer.body["error"]) == (400, "invalid_grant")

    with_auth_server(tmp_path, body)


def test_a_person_whose_account_is_gone_gets_no_more_tokens(tmp_path: Path) -> None:
    """SEC-08."""

    async def body(auth: AuthServer) -> None:
        accounts = Accounts(auth.store)
        await accounts.add("ada", "correct horse")
        ada = await accounts.verify_password("ada", "correct horse", "192.0.2.1")
        assert ada is not None
        client = await auth.client()
        tokens, code = await auth.granted(client, ada), await auth.code(client, ada)
        assert (await auth.refresh(client, tokens["refresh_token"])).status == 200
        await accounts.remove("ada")
        assert (await auth.redeem(client, code)).body["error"] == "invalid_grant"
        assert (await auth.refresh(client, tokens["refresh_token"])).body["error"] == "invalid_grant"
        assert not await auth.works(tokens["access_token"])

    with_auth_server(tmp_path, body)


@pytest.mark.parametrize("kind", ["access_token", "code"])
def test_nothing_else_is_a_refresh_token(tmp_path: Path, kind: str) -> None:
    """SEC-07."""

    async def body(auth: AuthServer) -> None:
        client = await auth.client()
        tokens = await auth.granted(client)
        token = {**tokens, "code": await auth.code(client)}[kind]
        assert (await auth.refresh(client, token)).body["error"] == "invalid_grant"
        assert (await auth.redeem(client, tokens["refresh_token"])).body["error"] == "invalid_grant"
        assert not await auth.works(tokens["refresh_token"])

    with_auth_server(tmp_path, body)


def test_a_client_that_does_not_refresh_gets_no_refresh_token(tmp_path: Path) -> None:
    async def body(auth: AuthServer) -> None:
        client = await auth.client(grant_types=["authorization_code"])
        tokens = await auth.granted(client)
        assert "refresh_token" not in tokens
        other = (await auth.granted(await auth.client()))["refresh_token"]
        assert (await auth.refresh(client, other)).body["error"] == "unauthorized_client"

    with_auth_server(tmp_path, body)


# What takes tokens away


def test_revoking_a_refresh_token_ends_the_family(tmp_path: Path) -> None:
    """TK-11."""

    async def body(auth: AuthServer) -> None:
        client = await auth.client()
        tokens = await auth.granted(client)
        newer = (await auth.refresh(client, tokens["refresh_token"])).body
        for hint in ("refresh_token", "access_token", "nonsense", None):  # the second time there is nothing to revoke
            form = {"client_id": client, "token": newer["refresh_token"], "token_type_hint": hint}
            answer = await auth.authorization.revoke(pairs(form), {})
            assert (answer.status, answer.body) == (200, {})
        assert (await auth.refresh(client, newer["refresh_token"])).body["error"] == "invalid_grant"
        assert not await auth.works(tokens["access_token"])
        assert not await auth.works(newer["access_token"])

    with_auth_server(tmp_path, body)


def test_revoking_an_access_token_denies_that_one(tmp_path: Path) -> None:
    """TK-11."""

    async def body(auth: AuthServer) -> None:
        client = await auth.client()
        tokens = await auth.granted(client)
        newer = (await auth.refresh(client, tokens["refresh_token"])).body
        await auth.tokens.verify(tokens["access_token"])
        answer = await auth.authorization.revoke([("client_id", client), ("token", tokens["access_token"])], {})
        assert answer.status == 200
        assert not await auth.works(tokens["access_token"])
        assert await auth.works(newer["access_token"])
        assert (await auth.refresh(client, newer["refresh_token"])).status == 200

    with_auth_server(tmp_path, body)


def test_a_client_can_not_revoke_another_clients_token(tmp_path: Path) -> None:
    async def body(auth: AuthServer) -> None:
        ours, theirs = await auth.client(), await auth.client()
        tokens = await auth.granted(ours)
        for token in (tokens["access_token"], tokens["refresh_token"]):
            answer = await auth.authorization.revoke([("client_id", theirs), ("token", token)], {})
            assert (answer.status, answer.body["error"]) == (400, "invalid_grant")
            for form in ([("token", token)], [("token", token), ("client_id", "nobody")]):
                assert (await auth.authorization.revoke(form, {})).status == 401
        for token in ("unknown", "a.b.c", "x" * 20_000):
            assert (await auth.authorization.revoke([("client_id", theirs), ("token", token)], {})).status == 200
        assert (await auth.authorization.revoke([("client_id", theirs)], {})).body["error"] == "invalid_request"
        assert await auth.works(tokens["access_token"])
        assert (await auth.refresh(ours, tokens["refresh_token"])).status == 200

    with_auth_server(tmp_path, body)


def test_introspection_tells_a_client_of_its_own_tokens_only(tmp_path: Path) -> None:
    """TK-11."""

    async def body(auth: AuthServer) -> None:
        kept = await auth.registered(token_endpoint_auth_method="client_secret_basic")
        other = await auth.registered(token_endpoint_auth_method="client_secret_post")
        client, headers = kept["client_id"], basic(kept["client_id"], kept["client_secret"])
        code = await auth.code(client, scope="tools:read")
        form = {"grant_type": "authorization_code", "code": code, "redirect_uri": BACK, "code_verifier": VERIFIER}
        tokens = (await auth.token(headers, **form)).body
        told = await auth.authorization.introspect([("token", tokens["access_token"])], headers)
        claims = await auth.tokens.claims(tokens["access_token"])
        del claims["grant"]  # ours alone
        assert (told.status, told.body) == (200, {"active": True, "token_type": "Bearer", **claims})
        told = await auth.authorization.introspect([("token", tokens["refresh_token"])], headers)
        assert (told.body["active"], told.body["scope"], told.body["sub"]) == (True, "tools:read", claims["sub"])
        for token in (tokens["access_token"], tokens["refresh_token"], "unknown", "a.b.c"):
            theirs = [("client_id", other["client_id"]), ("client_secret", other["client_secret"]), ("token", token)]
            assert (await auth.authorization.introspect(theirs, {})).body == {"active": False}
        public = await auth.client()
        nobody = [("client_id", public), ("token", tokens["access_token"])]
        assert (await auth.authorization.introspect(nobody, {})).status == 401
        await auth.authorization.revoke([("token", tokens["refresh_token"])], headers)
        for token in (tokens["access_token"], tokens["refresh_token"]):
            assert (await auth.authorization.introspect([("token", token)], headers)).body == {"active": False}

    with_auth_server(tmp_path, body)


def test_a_person_sees_what_they_granted_and_takes_it_back(tmp_path: Path) -> None:
    async def body(auth: AuthServer) -> None:
        client = await auth.client()
        tokens = await auth.granted(client, scope="tools:read")
        await auth.code(client)  # not redeemed: nothing was given yet
        (grant,) = await auth.authorization.grants.list_grants(ADA)
        assert (grant.client.name, grant.scopes, grant.person) == ("Fernhill", ("tools:read",), "Ada")
        assert grant.used_at == auth.clock.now
        assert await auth.authorization.grants.list_grants(BOB) == []
        assert not await auth.authorization.grants.revoke_grant(BOB, grant.id)
        assert not await auth.authorization.grants.revoke_grant(ADA, "no such grant")
        assert await auth.works(tokens["access_token"])
        assert await auth.authorization.grants.revoke_grant(ADA, grant.id)
        assert not await auth.works(tokens["access_token"])
        assert (await auth.refresh(client, tokens["refresh_token"])).body["error"] == "invalid_grant"
        assert await auth.authorization.grants.list_grants(ADA) == []

    with_auth_server(tmp_path, body)


def test_the_operator_lists_and_ends_all_grants(tmp_path: Path) -> None:
    async def body(auth: AuthServer) -> None:
        client = await auth.client()
        tokens = [await auth.granted(client, person) for person in (ADA, BOB)]
        held = await auth.authorization.grants.list_grants()
        assert sorted(grant.person for grant in held) == ["Ada", "Bob"]
        (bobs,) = (grant.id for grant in held if grant.person == "Bob")
        assert await auth.authorization.grants.revoke_grant(None, bobs)
        assert not await auth.authorization.grants.revoke_grant(None, bobs)
        assert [await auth.works(each["access_token"]) for each in tokens] == [True, False]

    with_auth_server(tmp_path, body)


def test_removing_a_client_ends_all_it_had(tmp_path: Path) -> None:
    async def body(auth: AuthServer) -> None:
        client = await auth.client()
        tokens = await auth.granted(client)
        assert [known.id for known, _, _ in await auth.authorization.grants.list_clients()] == [client]
        assert await auth.authorization.grants.remove_client(client)
        assert not await auth.authorization.grants.remove_client(client)
        assert not await auth.works(tokens["access_token"])
        assert (await auth.refresh(client, tokens["refresh_token"])).body["error"] == "invalid_client"

    with_auth_server(tmp_path, body)


def test_a_token_for_less_still_says_what_was_granted(tmp_path: Path) -> None:
    async def body(auth: AuthServer) -> None:
        client = await auth.client()
        tokens = await auth.granted(client, scope="tools:read tools:web")
        whole = await auth.tokens.verify(tokens["access_token"])
        answer = await auth.refresh(client, tokens["refresh_token"], scope="tools:read")
        less = await auth.tokens.verify(answer.body["access_token"])
        assert (whole.scopes, whole.grant_scopes) == ({"tools:read", "tools:web"}, None)
        assert (less.scopes, less.grant_scopes, less.grant) == (
            {"tools:read"},
            {"tools:read", "tools:web"},
            whole.grant,
        )

    with_auth_server(tmp_path, body)


# Of another server


def test_codes_and_refresh_tokens_are_good_at_the_url_alone_that_they_were_granted_under(tmp_path: Path) -> None:
    """RFC 8707 section 2.2; two servers on one state, or one whose public URL has changed."""

    async def run() -> None:
        async with (
            asyncio.timeout(PATIENCE),
            desk_of(tmp_path) as here,
            desk_of(tmp_path, here.clock, public_url="https://other.example") as there,
        ):
            registered = await here.registered(token_endpoint_auth_method="client_secret_basic")
            client, headers = registered["client_id"], basic(registered["client_id"], registered["client_secret"])
            code = await here.code(client)
            form = {"code": code, "redirect_uri": BACK, "code_verifier": VERIFIER, "client_id": None}
            refused = await there.token(headers, grant_type="authorization_code", **form)
            assert (refused.status, refused.body["error"]) == (400, "invalid_grant")
            assert "another URL" in refused.body["error_description"]
            tokens = (await here.token(headers, grant_type="authorization_code", **form)).body
            refresh = {"grant_type": "refresh_token", "refresh_token": tokens["refresh_token"]}
            assert (await there.token(headers, **refresh)).body == refused.body
            told = await there.authorization.introspect([("token", tokens["refresh_token"])], headers)
            assert told.body == {"active": False}
            assert (await here.token(headers, **refresh)).status == 200  # it was not used up

    asyncio.run(run())


# How many tokens


def test_tokens_that_hold_are_limited_by_client_and_the_refresh_token_stays_good(tmp_path: Path) -> None:
    async def body(auth: AuthServer) -> None:
        client, other = await auth.client(), await auth.client()
        tokens = await auth.granted(client)
        refresh = tokens["refresh_token"]
        for _ in range(MAX_CLIENT_TOKENS - 1):
            answer = await auth.refresh(client, refresh)
            assert answer.status == 200, answer
            refresh = answer.body["refresh_token"]
        refused = await auth.refresh(client, refresh)
        assert (refused.status, refused.headers["Retry-After"]) == (429, "60")
        await auth.granted(other)
        await auth.granted(client, BOB)
        (grant,) = [grant for grant in await auth.authorization.grants.list_grants(ADA) if grant.client.id == client]
        auth.clock.now += LIFETIME
        assert (await auth.refresh(client, refresh)).status == 200  # it was not used up
        await auth.authorization.grants.revoke_grant(ADA, grant.id)
        assert not await auth.works(tokens["access_token"])

    with_auth_server(tmp_path, body)


def test_tokens_that_hold_are_limited_by_person_too(tmp_path: Path) -> None:
    async def body(auth: AuthServer) -> None:
        client, ada = await auth.client(), derive_subject(ADA.issuer, ADA.subject)

        def put(connection: Any) -> None:
            for number in range(MAX_TOKENS):
                row = {"jti": f"t-{number}", "client": f"c-{number}", "subject": ada, "grant_id": None}
                grant_rows.add_access_token(connection, expires_at=auth.clock.now + 60, **row)

        await auth.store.transact(put)
        code = await auth.code(client)
        assert (await auth.redeem(client, code)).status == 429
        await auth.granted(client, BOB)
        auth.clock.now += 60 - 1
        assert (await auth.redeem(client, code)).status == 429
        auth.clock.now += 1
        assert (await auth.redeem(client, await auth.code(client))).status == 200

    with_auth_server(tmp_path, body)


# Who still stands


def test_valid_keys_are_found_by_grants_and_by_tokens_without_a_grant(tmp_path: Path) -> None:
    async def body(auth: AuthServer) -> None:
        standing, client = auth.authorization.find_valid_keys, await auth.client()
        ada, bob = derive_subject(ADA.issuer, ADA.subject), derive_subject(BOB.issuer, BOB.subject)
        pairs = [(ada, client), (bob, client)]
        assert await standing([]) == set() == await standing([*pairs, ("nobody", client)])
        await auth.granted(client)
        tokens = await auth.granted(client, BOB)
        auth.clock.now += 3_600  # the access tokens are over; the clients may refresh
        assert await standing(pairs) == set(pairs)
        assert await standing([(ada, "another"), *pairs, (bob, client), (client, client)]) == set(pairs)
        (grant,) = await auth.authorization.grants.list_grants(ADA)
        await auth.authorization.grants.revoke_grant(ADA, grant.id)
        assert await standing(pairs) == {(bob, client)}
        assert (await auth.refresh(client, tokens["refresh_token"])).status == 200
        auth.clock.now += GRANT_LIFETIME
        assert await standing(pairs) == set()

    with_auth_server(tmp_path, body)


def test_a_token_names_its_grant_and_only_that_grant_lets_it_go_on(tmp_path: Path) -> None:
    async def body(auth: AuthServer) -> None:
        client, rights = await auth.client(), []
        for _ in range(2):
            tokens = await auth.granted(client)
            rights.append((await auth.tokens.verify(tokens["access_token"])).grant_key)
        unredeemed = await auth.code(client)
        ids = [grant.id for grant in await auth.authorization.grants.list_grants(ADA)]
        assert sorted(map(str, rights)) == sorted(ids)
        assert await auth.authorization.find_valid_keys(rights) == set(rights)
        assert isinstance(rights[0], str) and await auth.authorization.grants.revoke_grant(ADA, rights[0])
        assert await auth.authorization.find_valid_keys(rights) == {rights[1]}
        assert isinstance(rights[1], str) and await auth.authorization.grants.revoke_grant(ADA, rights[1])
        pair = (derive_subject(ADA.issuer, ADA.subject), client)
        assert await auth.authorization.find_valid_keys([*rights, pair]) == set()
        refused = await auth.redeem(client, unredeemed)  # the person was asked for it before that was taken back
        assert (refused.status, refused.body["error"]) == (400, "invalid_grant")
        assert (await auth.redeem(client, await auth.code(client))).status == 200
        assert await auth.authorization.find_valid_keys([*rights, pair]) == {pair}

    with_auth_server(tmp_path, body)


def test_the_grants_of_a_barred_person_end(tmp_path: Path) -> None:
    gone: set[str] = set()

    async def body(auth: AuthServer) -> None:
        client = await auth.client()
        pairs = [(derive_subject(person.issuer, person.subject), client) for person in (ADA, BOB)]
        tokens = await auth.granted(client)
        await auth.granted(client, BOB)
        gone.add(ADA.subject)
        assert await auth.authorization.find_valid_keys(pairs) == {pairs[1]}
        assert not await auth.works(tokens["access_token"])

    with_auth_server(tmp_path, body, can_sign_in=lambda person: person.subject not in gone)


def test_sec_08_access_tokens_of_a_barred_person_end_though_nothing_is_open(tmp_path: Path) -> None:
    gone: set[str] = set()
    ada = Principal(OWN_ISSUER, derive_subject(ADA.issuer, ADA.subject), "").name

    async def body(auth: AuthServer) -> None:
        client, given = await auth.client(), []
        for person in (ADA, BOB):
            given.append((await auth.granted(client, person))["access_token"])
            await auth.tokens.verify(given[-1])
        assert await auth.authorization.revoke_barred_people() == set()
        gone.add(ADA.subject)
        assert await auth.authorization.revoke_barred_people() == {ada}
        assert [auth.tokens.find_cached(hash_token(token.encode())) is None for token in given] == [True, False]
        assert [await auth.works(token) for token in given] == [False, True]
        assert await auth.authorization.revoke_barred_people() == {ada}  # as long as they may not

    with_auth_server(tmp_path, body, can_sign_in=lambda person: person.subject not in gone)


def test_sec_08_a_removed_accounts_access_tokens_end_though_its_grants_were_left(tmp_path: Path) -> None:
    async def body(auth: AuthServer) -> None:
        accounts = Accounts(auth.store, now=auth.clock)
        tokens = await auth.granted(await auth.client(), await accounts.add("ada", "correct horse"))
        await auth.store.transact(lambda connection: people_rows.remove_account(connection, "ada"))
        assert await auth.works(tokens["access_token"])
        await auth.authorization.revoke_barred_people()
        assert not await auth.works(tokens["access_token"])

    with_auth_server(tmp_path, body)


def test_of_many_people_a_look_reads_some_and_those_that_have_changed(tmp_path: Path) -> None:
    read = [0]

    def can_sign_in(_person: Person) -> bool:
        read[0] += 1
        return True

    async def body(auth: AuthServer) -> None:
        accounts, row = Accounts(auth.store, now=auth.clock), {"issuer": "https://issuer.example", "name": "x"}
        rows = [{**row, "subject": f"s-{n:04}", "known_as": str(n), "seen_at": 0.0} for n in range(1_000)]
        await auth.store.transact(lambda connection: connection.execute(tables.person.insert(), rows))
        zoe = await accounts.add("zoe", "correct horse")
        tokens = await auth.granted(await auth.client(), zoe)
        read[0] = 0
        assert await auth.authorization.revoke_barred_people() == set()
        assert read[0] >= 1_001  # the first time
        auth.clock.now += 3_600.0
        read[0] = 0
        assert await auth.authorization.revoke_barred_people() == set()
        assert read[0] == 200
        for _ in range(6):
            await auth.authorization.revoke_barred_people()
        await accounts.remove("zoe")
        zoes = Principal(OWN_ISSUER, derive_subject(zoe.issuer, zoe.subject), "").name
        assert await auth.authorization.revoke_barred_people() == {zoes}
        assert not await auth.works(tokens["access_token"])

    with_auth_server(tmp_path, body, can_sign_in=can_sign_in)


def test_sec_08_access_tokens_of_a_barred_person_end_at_the_first_check_after_a_restart(tmp_path: Path) -> None:
    async def run() -> None:
        async with auth_server(tmp_path) as before:
            tokens = await before.granted(await before.client())
        async with auth_server(tmp_path, before.clock, can_sign_in=lambda _person: False) as after:
            await after.tokens.verify(tokens["access_token"])
            assert len(await after.authorization.revoke_barred_people()) == 1
            with pytest.raises(InvalidTokenError):
                await after.tokens.verify(tokens["access_token"])
        async with auth_server(tmp_path, before.clock) as again:
            assert not await again.works(tokens["access_token"])

    asyncio.run(asyncio.wait_for(run(), 20))


def test_a_client_for_itself_stands_as_long_as_it_is_known_and_its_token_holds(tmp_path: Path) -> None:
    secret = "a secret of the night"
    nightly = OAuthClient(
        "nightly",
        "configured",
        "Nightly",
        (),
        "client_secret_basic",
        frozenset((CLIENT_CREDENTIALS,)),
        None,
        hash_secret(secret),
    )
    pair = ("nightly", "nightly")

    async def body(auth: AuthServer) -> None:
        given = await auth.token(basic("nightly", secret), grant_type=CLIENT_CREDENTIALS)
        assert given.status == 200 and await auth.authorization.find_valid_keys([pair]) == {pair}
        async with desk_of(tmp_path, auth.clock) as without:
            assert await without.authorization.find_valid_keys([pair]) == set()
        auth.clock.now += 900
        assert await auth.authorization.find_valid_keys([pair]) == set()
        await auth.token(basic("nightly", secret), grant_type=CLIENT_CREDENTIALS)
        assert await auth.authorization.find_valid_keys([pair]) == {pair}
        assert await auth.authorization.grants.revoke_all(client="nightly") == 0
        assert await auth.authorization.find_valid_keys([pair]) == set()

    with_auth_server(tmp_path, body, configured_clients={"nightly": nightly})


# What survives


def test_after_a_restart_clients_are_registered_and_refresh(tmp_path: Path) -> None:
    async def run() -> None:
        async with auth_server(tmp_path) as before:
            client = await before.client()
            tokens, code = await before.granted(client), await before.code(client)
            question = await before.asked(client)
        async with auth_server(tmp_path) as after:
            assert await after.authorization.find_consent(question.id) == question  # type: ignore[union-attr]
            assert await after.works(tokens["access_token"])
            assert (await after.redeem(client, code)).status == 200
            assert (await after.refresh(client, tokens["refresh_token"])).status == 200

    asyncio.run(asyncio.wait_for(run(), 20))


DYING = """
import asyncio, os, signal, sys
from pathlib import Path
from sqlalchemy import event
from sqlalchemy.engine import Engine
from tests.server.auth.authorization_in_process import auth_server

async def main(folder, kind, client, token, at):
    async with auth_server(Path(folder)) as here:
        await here.keys.active()
        left = [at]
        def count(*_):
            left[0] -= 1
            if left[0] == 0:
                os.kill(os.getpid(), signal.SIGKILL)
        event.listen(Engine, "after_cursor_execute", count)
        event.listen(Engine, "commit", count)
        answer = await (here.redeem(client, token) if kind == "code" else here.refresh(client, token))
        os._exit(0 if answer.status == 200 else 1)

for line in sys.stdin:  # a process for each, with all imported once
    child = os.fork()
    if not child:
        asyncio.run(main(*sys.argv[1:], int(line)))
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""


@pytest.mark.brief("refresh-3")  # hostile/test_kill.py kills amid exchanges of codes
@pytest.mark.parametrize("every", [3, pytest.param(1, marks=pytest.mark.soak)])
@pytest.mark.parametrize("kind", ["code", "refresh"])
def test_kill_9_in_the_middle_of_an_exchange_loses_and_doubles_nothing(tmp_path: Path, kind: str, every: int) -> None:
    """Killed after its statements, and before the commit: the code or token stays valid."""

    async def prepare() -> tuple[str, str]:
        async with auth_server(tmp_path) as here:
            client = await here.client()
            tokens = await here.granted(client)
            return client, await here.code(client) if kind == "code" else tokens["refresh_token"]

    def counts() -> list[int]:
        tables = "oauth_code WHERE redeemed_at IS NOT NULL", "oauth_access", "oauth_refresh", "oauth_grant"
        connection = sqlite3.connect(tmp_path / "state" / "state.db")
        try:
            return [connection.execute(f"SELECT count(*) FROM {table}").fetchone()[0] for table in tables]
        finally:
            connection.close()

    client, token = asyncio.run(prepare())
    before, killed = counts(), 0
    arguments = [sys.executable, "-c", DYING, str(tmp_path), kind, client, token]
    with subprocess.Popen(arguments, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as dying:
        assert dying.stdin and dying.stdout
        for statement in range(1, 60, every):
            dying.stdin.write(f"{statement}\n")
            dying.stdin.flush()
            code = int(dying.stdout.readline())
            if code == 0:
                break
            assert code == -signal.SIGKILL
            killed += 1
            assert counts() == before
        dying.stdin.close()
    assert code == 0
    assert killed >= 8 // every
    made = [1, 1, 1, 0] if kind == "code" else [0, 1, 1, 0]
    assert counts() == [number + more for number, more in zip(before, made, strict=True)]
