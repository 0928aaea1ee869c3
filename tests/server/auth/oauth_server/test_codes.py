"""Authorization codes: valid requests, redirects, and a code's single redemption by its own client."""

import asyncio
import logging
import re
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest
from msgspec.structs import replace

from tests.folder_contents import read_files
from tests.server.auth.authorization_in_process import (
    ADA,
    ALL,
    BACK,
    BOB,
    MCP,
    START,
    URL,
    VERIFIER,
    AuthServer,
    auth_server,
    basic,
    challenge,
    pairs,
    query,
    told,
    with_auth_server,
)
from toolgate.server.auth.oauth_server.consent_requests import ConsentRequest
from toolgate.server.auth.oauth_server.responses import ErrorPage, Redirect
from toolgate.server.auth.tokens import jose
from toolgate.server.auth.tokens.access_tokens import OWN_ISSUER
from toolgate.server.base.principals import scopes
from toolgate.server.base.principals.principal import Principal, derive_subject


def test_az_06_tk_07_a_code_becomes_tokens_that_name_their_subject(tmp_path: Path) -> None:
    """RFC 9068."""

    async def body(auth: AuthServer) -> None:
        client = await auth.client()
        answer = await auth.redeem(client, await auth.code(client, scope="tools:read tools:web offline_access"))
        assert answer.status == 200
        assert answer.headers["Cache-Control"] == "no-store"
        assert answer.headers["Pragma"] == "no-cache"
        assert {**answer.body, "access_token": "…", "refresh_token": "…"} == {
            "access_token": "…",
            "refresh_token": "…",
            "token_type": "Bearer",
            "expires_in": 895,  # 5 before they end
            "scope": "tools:read tools:web offline_access",
        }
        access = answer.body["access_token"]
        claims = await auth.tokens.claims(access)
        subject = derive_subject(ADA.issuer, ADA.subject)
        assert {name: claims[name] for name in ("iss", "aud", "sub", "client_id", "scope", "iat", "exp")} == {
            "iss": URL,
            "aud": MCP,
            "sub": subject,
            "client_id": client,
            "scope": "tools:read tools:web",
            "iat": START,
            "exp": START + 900,
        }
        assert jose.read_header(access)["typ"] == "at+jwt"
        assert await auth.tokens.verify(access) == Principal(
            OWN_ISSUER, subject, client, frozenset(("tools:read", "tools:web"))
        )

    with_auth_server(tmp_path, body)


def test_the_answer_carries_code_state_and_issuer_and_nothing_else(tmp_path: Path) -> None:
    async def body(auth: AuthServer) -> None:
        client = await auth.client()
        question = await auth.asked(client, state="a b&c=d\u2603")
        assert isinstance(question, ConsentRequest)
        assert (question.client.id, question.client.name, question.client.kind) == (client, "Fernhill", "dynamic")
        assert (question.redirect_uri, question.redirect_host) == (BACK, "app.example")
        assert (question.scopes, question.resource) == (scopes.SERVED, MCP)
        answered = await auth.authorization.answer_consent(question.id, ADA, ALL)
        assert isinstance(answered, Redirect)
        assert answered.location.startswith(f"{BACK}?")
        said = told(answered)
        assert {**said, "code": "…"} == {"code": "…", "state": "a b&c=d\u2603", "iss": URL}
        assert len(said["code"]) >= 43

    with_auth_server(tmp_path, body)


def test_a_denial_and_an_empty_consent_reach_the_client_with_state_and_issuer(tmp_path: Path) -> None:
    async def body(auth: AuthServer) -> None:
        client = await auth.client()
        for person, ticked in ((None, ALL), (ADA, frozenset[str]()), (ADA, frozenset(("tools:unheard-of",)))):
            question = await auth.asked(client)
            assert isinstance(question, ConsentRequest)
            said = told(await auth.authorization.answer_consent(question.id, person, ticked))
            assert (said["error"], said["state"], said["iss"]) == ("access_denied", "s-1", URL)
            assert "code" not in said
        assert await auth.rows("oauth_code") == 0

    with_auth_server(tmp_path, body)


def test_a_scope_that_was_unticked_or_never_asked_for_is_not_granted(tmp_path: Path) -> None:
    async def body(auth: AuthServer) -> None:
        client = await auth.client()
        question = await auth.asked(client, scope="tools:read tools:shell")
        assert isinstance(question, ConsentRequest)
        ticked = frozenset(("tools:read", "tools:web"))
        said = told(await auth.authorization.answer_consent(question.id, ADA, ticked))
        assert (await auth.redeem(client, said["code"])).body["scope"] == "tools:read"

    with_auth_server(tmp_path, body)


def test_a_question_is_answered_once_and_within_ten_minutes(tmp_path: Path) -> None:
    async def body(auth: AuthServer) -> None:
        client = await auth.client()
        first, second, third = [await auth.asked(client) for _ in range(3)]  # tabs (AZ-09)
        assert (
            isinstance(first, ConsentRequest)
            and isinstance(second, ConsentRequest)
            and isinstance(third, ConsentRequest)
        )
        assert await auth.authorization.find_consent(first.id) == first
        assert isinstance(await auth.authorization.answer_consent(first.id, ADA, ALL), Redirect)
        assert await auth.authorization.find_consent(first.id) is None
        again = await auth.authorization.answer_consent(first.id, ADA, ALL)
        assert isinstance(again, ErrorPage) and again.status == 410
        assert isinstance(await auth.authorization.answer_consent(second.id, BOB, ALL), Redirect)
        auth.clock.now += 601
        assert await auth.authorization.find_consent(third.id) is None
        assert isinstance(await auth.authorization.answer_consent(third.id, ADA, ALL), ErrorPage)
        assert isinstance(await auth.authorization.answer_consent("no such question", ADA, ALL), ErrorPage)

    with_auth_server(tmp_path, body)


# AZ-02, SEC-01: what may be wrong before the client and its redirect URI are known goes nowhere

STRANGERS = {
    "an unknown client": {"client_id": "nobody"},
    "no client": {"client_id": None},
    "an empty client": {"client_id": ""},
    "a NUL in the client": {"client_id": "a\0b"},
    "another host": {"redirect_uri": "https://evil.example/back"},
    "a longer path": {"redirect_uri": f"{BACK}/more"},
    "a path that goes up": {"redirect_uri": "https://app.example/x/../back"},
    "an encoded path": {"redirect_uri": "https://app.example/%62ack"},
    "an encoded slash": {"redirect_uri": "https://app.example%2Fback"},
    "another case of the path": {"redirect_uri": "https://app.example/Back"},
    "another case of the host": {"redirect_uri": "https://APP.example/back"},
    "another case of the scheme": {"redirect_uri": "HTTPS://app.example/back"},
    "the default port": {"redirect_uri": "https://app.example:443/back"},
    "port 0": {"redirect_uri": "https://app.example:0/back"},
    "port 65536": {"redirect_uri": "https://app.example:65536/back"},
    "a user name": {"redirect_uri": "https://app.example@evil.example/back"},
    "our host as a user name": {"redirect_uri": "https://u@app.example/back"},
    "a fragment": {"redirect_uri": f"{BACK}#x"},
    "a query": {"redirect_uri": f"{BACK}?x=1"},
    "an empty query": {"redirect_uri": f"{BACK}?"},
    "a trailing slash": {"redirect_uri": f"{BACK}/"},
    "a trailing dot": {"redirect_uri": "https://app.example./back"},
    "a backslash": {"redirect_uri": "https://app.example\\@evil.example/back"},
    "two slashes": {"redirect_uri": "//app.example/back"},
    "a homograph": {"redirect_uri": "https://\u0430pp.example/back"},
    "http": {"redirect_uri": "http://app.example/back"},
    "a line break": {"redirect_uri": f"{BACK}\r\nSet-Cookie: a=b"},
    "a space in front": {"redirect_uri": f" {BACK}"},
    "a quote, which Authlib can't say": {"redirect_uri": f'{BACK}"'},
    "javascript": {"redirect_uri": "javascript:alert(1)//https://app.example/back"},
}


@pytest.mark.parametrize("wrong", STRANGERS.values(), ids=STRANGERS)
def test_a_client_or_an_address_that_is_not_known_is_shown_and_never_redirected_to(
    tmp_path: Path, wrong: dict[str, str | None]
) -> None:
    async def body(auth: AuthServer) -> None:
        client = await auth.client()
        outcome = await auth.authorization.open_consent(query(client, **wrong))
        assert isinstance(outcome, ErrorPage), outcome
        assert outcome.error == ("invalid_client" if "client_id" in wrong else "invalid_request")
        assert outcome.status == 400
        given = next(iter(wrong.values()))
        assert not given or given not in outcome.description
        assert await auth.rows("oauth_used") == 0

    with_auth_server(tmp_path, body)


def test_two_clients_two_addresses_or_what_is_no_text_are_a_mistake(tmp_path: Path) -> None:
    async def body(auth: AuthServer) -> None:
        client = await auth.client()
        for asked in (
            f"{query(client)}&client_id=other",
            f"{query(client)}&redirect_uri=https%3A%2F%2Fevil.example%2F",
            f"redirect_uri=https%3A%2F%2Fevil.example%2F&{query(client)}",
            f"{query(client)}&client_id={client}",
            f"{query(client)}&state=%ff%fe",
            query(client) + "&x=" + "y" * 9_000,
            "&".join(f"a{number}=b" for number in range(100)),
            "",
        ):
            assert isinstance(await auth.authorization.open_consent(asked), ErrorPage), asked[:80]

    with_auth_server(tmp_path, body)


# AZ-03, AZ-04, AZ-05, SEC-05: everything else is told to the client, with state and iss

WRONG = {
    "no challenge": ({"code_challenge": None, "code_challenge_method": None}, "invalid_request"),
    "a method without a challenge": ({"code_challenge": None}, "invalid_request"),
    "no method, which means plain": ({"code_challenge_method": None}, "invalid_request"),
    "plain": ({"code_challenge_method": "plain"}, "invalid_request"),
    "s256 in small letters": ({"code_challenge_method": "s256"}, "invalid_request"),
    "S512": ({"code_challenge_method": "S512"}, "invalid_request"),
    "a short challenge": ({"code_challenge": "a" * 42}, "invalid_request"),
    "a long challenge": ({"code_challenge": "a" * 44}, "invalid_request"),
    "a challenge with a line break": ({"code_challenge": "a" * 43 + "\n"}, "invalid_request"),
    "no response type": ({"response_type": None}, "invalid_request"),
    "the implicit grant": ({"response_type": "token"}, "unsupported_response_type"),
    "a hybrid": ({"response_type": "code id_token"}, "unsupported_response_type"),
    "a quote in the response type": ({"response_type": 'co"de'}, "unsupported_response_type"),
    "a foreign resource": ({"resource": "https://other.example/mcp"}, "invalid_target"),
    "our name in somebody's host": ({"resource": "https://tools.example.evil.example/mcp"}, "invalid_target"),
    "our name as a user": ({"resource": "https://tools.example@evil.example/mcp"}, "invalid_target"),
    "another path of ours": ({"resource": f"{URL}/admin"}, "invalid_target"),
    "another port of ours": ({"resource": "https://tools.example:8443/mcp"}, "invalid_target"),
    "http": ({"resource": "http://tools.example/mcp"}, "invalid_target"),
    "no URL": ({"resource": "mcp"}, "invalid_target"),
    "an unreadable URL": ({"resource": "https://[::1/mcp"}, "invalid_target"),
    "a fragment": ({"resource": f"{MCP}#x"}, "invalid_target"),
    "unknown scopes only": ({"scope": "admin root"}, "invalid_scope"),
    "a quote in the scope": ({"scope": 'ad"min'}, "invalid_scope"),
    "a request object": ({"request": "e30.e30."}, "request_not_supported"),
    "a request elsewhere": ({"request_uri": "https://evil.example/"}, "request_uri_not_supported"),
}


@pytest.mark.parametrize(("wrong", "error"), WRONG.values(), ids=WRONG)
@pytest.mark.parametrize("method", ["none", "client_secret_basic"])
def test_a_wrong_request_is_answered_to_the_client_in_fixed_words(
    tmp_path: Path, wrong: dict[str, str | None], error: str, method: str
) -> None:
    async def body(auth: AuthServer) -> None:
        client = await auth.client(token_endpoint_auth_method=method)
        outcome = await auth.asked(client, **wrong)
        said = told(outcome)
        assert (said["error"], said["state"], said["iss"]) == (error, "s-1", URL)
        given = next(iter(wrong.values()))
        assert not given or given not in said["error_description"]
        assert "code" not in said
        assert await auth.rows("oauth_used") == 0

    with_auth_server(tmp_path, body)


@pytest.mark.parametrize("name", ["response_type", "scope", "state", "code_challenge", "code_challenge_method", "x"])
def test_a_parameter_that_comes_twice_is_invalid_request(tmp_path: Path, name: str) -> None:
    """AZ-04."""

    async def body(auth: AuthServer) -> None:
        client = await auth.client()
        outcome = await auth.authorization.open_consent(
            f"{query(client, scope='tools:read', x='1')}&{name}=tools%3Aweb"
        )
        assert told(outcome)["error"] == "invalid_request"
        assert told(outcome)["iss"] == URL

    with_auth_server(tmp_path, body)


def test_unknown_and_empty_parameters_are_ignored(tmp_path: Path) -> None:
    async def body(auth: AuthServer) -> None:
        client = await auth.client()
        more = {
            "audience": "x",
            "nonce": "n",
            "prompt": "consent",
            "access_type": "offline",
            "scope": "",
            "display": "",
        }
        assert isinstance(await auth.asked(client, **more), ConsentRequest)
        answer = await auth.redeem(client, await auth.code(client), audience="x", client_secret="", foo="bar")
        assert answer.status == 200

    with_auth_server(tmp_path, body)


SAME = (
    None, MCP, f"{URL}/sse", URL, f"{URL}/", f"{MCP}/", "https://TOOLS.example/mcp", "HTTPS://tools.example/mcp",
    "https://tools.example:443/mcp", "https://tools.example:443",
)  # fmt: skip


@pytest.mark.parametrize("resource", SAME)
def test_all_the_ways_in_which_clients_write_our_resource_are_one(tmp_path: Path, resource: str | None) -> None:
    """AZ-05, TK-06: the token is for the canonical one."""

    async def body(auth: AuthServer) -> None:
        client = await auth.client()
        tokens = (await auth.redeem(client, await auth.code(client, resource=resource), resource=resource)).body
        assert (await auth.tokens.claims(tokens["access_token"]))["aud"] == MCP
        again = await auth.refresh(client, tokens["refresh_token"], resource=resource)
        assert (await auth.tokens.claims(again.body["access_token"]))["aud"] == MCP

    with_auth_server(tmp_path, body)


def test_all_of_several_resources_must_be_ours(tmp_path: Path) -> None:
    async def body(auth: AuthServer) -> None:
        client = await auth.client()
        ours = urlencode([("resource", MCP), ("resource", f"{URL}/sse")])
        assert isinstance(await auth.authorization.open_consent(f"{query(client)}&{ours}"), ConsentRequest)
        mixed = urlencode([("resource", MCP), ("resource", "https://other.example/mcp")])
        assert told(await auth.authorization.open_consent(f"{query(client)}&{mixed}"))["error"] == "invalid_target"

    with_auth_server(tmp_path, body)


@pytest.mark.parametrize("resource", ["http://localhost:8080/mcp", "http://127.0.0.1:8080", "http://[::1]:8080/sse"])
def test_the_names_of_loopback_are_one(tmp_path: Path, resource: str) -> None:
    async def body(auth: AuthServer) -> None:
        client = await auth.client()
        assert isinstance(await auth.asked(client, resource=resource), ConsentRequest)
        assert told(await auth.asked(client, resource="http://localhost:8081/mcp"))["error"] == "invalid_target"

    with_auth_server(tmp_path, body, public_url="http://127.0.0.1:8080")


@pytest.mark.parametrize(
    ("resource", "ours"),
    [
        ("https://tools.example/gate/mcp", True),
        ("https://tools.example/gate/sse/", True),
        ("https://tools.example/gate", True),
        ("https://tools.example/", True),
        ("https://tools.example/mcp", False),
        ("https://tools.example/gate/mcp/more", False),
        ("https://tools.example/gates/mcp", False),
    ],
)
def test_behind_a_prefix_the_resource_has_it_too(tmp_path: Path, resource: str, ours: bool) -> None:
    async def body(auth: AuthServer) -> None:
        outcome = await auth.asked(await auth.client(), resource=resource)
        assert isinstance(outcome, ConsentRequest if ours else Redirect)

    with_auth_server(tmp_path, body, public_url=f"{URL}/gate")


# AZ-01: loopback


@pytest.mark.parametrize(
    ("registered", "sent", "taken"),
    [
        ("http://127.0.0.1/cb", "http://127.0.0.1:53211/cb", True),
        ("http://127.0.0.1:33418/", "http://127.0.0.1:51000/", True),
        ("http://localhost:3000/cb", "http://localhost/cb", True),
        ("http://localhost:3000/cb", "http://localhost:1/cb", True),
        ("http://[::1]/cb", "http://[::1]:9000/cb", True),
        ("http://localhost/cb?a=1", "http://localhost:9/cb?a=1", True),
        ("http://localhost/cb", "http://127.0.0.1:9/cb", False),
        ("http://127.0.0.1/cb", "http://localhost:9/cb", False),
        ("http://127.0.0.1/cb", "http://127.0.0.1:9/cb/", False),
        ("http://127.0.0.1/cb", "http://127.0.0.1:9/cb?a=1", False),
        ("http://127.0.0.1/cb", "http://127.0.0.1:9/CB", False),
        ("http://127.0.0.1/cb", "https://127.0.0.1:9/cb", False),
        ("http://127.0.0.1/cb", "http://127.0.0.1:0/cb", False),
        ("http://127.0.0.1/cb", "http://127.0.0.1:65536/cb", False),
        ("http://127.0.0.1/cb", "http://127.0.0.1:080/cb", False),
        ("http://127.0.0.1/cb", "http://127.0.0.1:/cb", False),
        ("http://127.0.0.1/cb", "http://127.0.0.1:9@evil.example/cb", False),
        ("http://127.0.0.1/cb", "http://127.0.0.1.evil.example/cb", False),
        ("http://localhost/cb", "http://localhost.evil.example:9/cb", False),
        ("http://localhost/cb", "http://LOCALHOST:9/cb", False),
        ("http://127.0.0.1/cb", "http://127.1:9/cb", False),
        ("http://127.0.0.1/cb", "http://127.0.0.1:9/cb#x", False),
        ("https://app.example/cb", "https://app.example:9/cb", False),
    ],
)
def test_on_loopback_any_port_is_the_same_and_nothing_else(
    tmp_path: Path, registered: str, sent: str, taken: bool
) -> None:
    async def body(auth: AuthServer) -> None:
        client = await auth.client(redirect_uris=[registered])
        outcome = await auth.asked(client, redirect_uri=sent)
        assert isinstance(outcome, ConsentRequest if taken else ErrorPage)
        if taken:
            tokens = await auth.redeem(client, await auth.code(client, redirect_uri=sent), redirect_uri=sent)
            assert tokens.status == 200
            other = await auth.redeem(client, await auth.code(client, redirect_uri=sent), redirect_uri="http://x/")
            assert other.body["error"] == "invalid_grant"

    with_auth_server(tmp_path, body)


def test_a_client_with_one_address_may_leave_it_out(tmp_path: Path) -> None:
    async def body(auth: AuthServer) -> None:
        client = await auth.client()
        code = await auth.code(client, redirect_uri=None)
        assert (await auth.redeem(client, code, redirect_uri=None)).status == 200
        two = await auth.client(redirect_uris=[BACK, "https://app.example/other"])
        assert isinstance(await auth.asked(two, redirect_uri=None), ErrorPage)

    with_auth_server(tmp_path, body)


# Redeeming

WRONG_REDEMPTIONS = {
    "another verifier (SEC-04)": ({"code_verifier": "w" * 43}, "invalid_grant"),
    "no verifier": ({"code_verifier": None}, "invalid_request"),
    "a short verifier": ({"code_verifier": "v" * 42}, "invalid_request"),
    "the challenge as verifier": ({"code_verifier": challenge()}, "invalid_grant"),
    "another address": ({"redirect_uri": "https://app.example/other"}, "invalid_grant"),
    "another code": ({"code": "x" * 43}, "invalid_grant"),
    "no code": ({"code": None}, "invalid_request"),
    "a foreign resource": ({"resource": "https://other.example/"}, "invalid_target"),
    "another grant": ({"grant_type": "password"}, "unsupported_grant_type"),
    "a quote in the grant": ({"grant_type": 'x"y\u2603'}, "unsupported_grant_type"),
    "no grant": ({"grant_type": None}, "invalid_request"),
    "an unknown client (TK-05)": ({"client_id": "nobody"}, "invalid_client"),
    "no client": ({"client_id": None}, "invalid_client"),
}


@pytest.mark.parametrize(("wrong", "error"), WRONG_REDEMPTIONS.values(), ids=WRONG_REDEMPTIONS)
def test_a_wrong_redemption_is_refused_in_fixed_words_and_leaves_the_code_as_it_was(
    tmp_path: Path, wrong: dict[str, str | None], error: str
) -> None:
    """TK-02, TK-05."""

    async def body(auth: AuthServer) -> None:
        client = await auth.client()
        code = await auth.code(client)
        form = {"grant_type": "authorization_code", "client_id": client, "code": code, "redirect_uri": BACK}
        answer = await auth.token(**{**form, "code_verifier": VERIFIER, **wrong})
        assert (answer.status, answer.body["error"]) == (401 if error == "invalid_client" else 400, error)
        assert ("WWW-Authenticate" in answer.headers) == (answer.status == 401)
        assert answer.headers["Cache-Control"] == "no-store"
        given = next(iter(wrong.values()))
        assert not given or given not in answer.body["error_description"]
        assert (await auth.redeem(client, code)).status == 200

    with_auth_server(tmp_path, body)


def test_a_repeated_redirect_uri_must_equal_the_first_and_may_be_left_out(tmp_path: Path) -> None:
    """TK-02, OAuth 2.1 section 10.2: PKCE binds the code."""

    async def body(auth: AuthServer) -> None:
        client = await auth.client()
        assert (await auth.redeem(client, await auth.code(client), redirect_uri=None)).status == 200
        assert (await auth.redeem(client, await auth.code(client, redirect_uri=None))).status == 200
        left_out = await auth.code(client, redirect_uri=None)
        other = await auth.redeem(client, left_out, redirect_uri="https://app.example/other")
        assert other.body["error"] == "invalid_grant"

    with_auth_server(tmp_path, body)


def test_a_code_of_another_client_is_no_good_and_stays_so_for_its_own(tmp_path: Path) -> None:
    async def body(auth: AuthServer) -> None:
        ours, theirs = await auth.client(), await auth.client()
        code = await auth.code(ours)
        assert (await auth.redeem(theirs, code)).body["error"] == "invalid_grant"
        tokens = (await auth.redeem(ours, code)).body
        assert (await auth.redeem(theirs, code)).body["error"] == "invalid_grant"  # no replay: nothing is revoked
        assert await auth.works(tokens["access_token"])

    with_auth_server(tmp_path, body)


def test_a_code_lasts_a_minute(tmp_path: Path) -> None:
    async def body(auth: AuthServer) -> None:
        client = await auth.client()
        early, late = await auth.code(client), await auth.code(client)
        auth.clock.now += 59
        assert (await auth.redeem(client, early)).status == 200
        auth.clock.now += 1
        assert (await auth.redeem(client, late)).body["error"] == "invalid_grant"

    with_auth_server(tmp_path, body)


@pytest.mark.parametrize("later", [0, 30, 300])
def test_a_replayed_code_takes_its_tokens_along(tmp_path: Path, later: int) -> None:
    """TK-03."""

    async def body(auth: AuthServer) -> None:
        client = await auth.client()
        code = await auth.code(client)
        tokens = (await auth.redeem(client, code)).body
        other = await auth.granted(client)
        renewed = (await auth.refresh(client, tokens["refresh_token"])).body
        auth.clock.now += later
        assert await auth.works(renewed["access_token"])
        assert (await auth.redeem(client, code, code_verifier="w" * 43)).body["error"] == "invalid_grant"
        for token in (tokens, renewed):
            assert not await auth.works(token["access_token"])
            assert (await auth.refresh(client, token["refresh_token"])).body["error"] == "invalid_grant"
        with pytest.raises(jose.InvalidTokenError):  # where it was used before, at once
            await auth.tokens.verify(renewed["access_token"])
        assert await auth.works(other["access_token"])

    with_auth_server(tmp_path, body)


def test_of_eight_parallel_redemptions_one_succeeds(tmp_path: Path) -> None:
    """TK-03."""

    async def body(auth: AuthServer) -> None:
        client = await auth.client()
        code = await auth.code(client)
        answers = await asyncio.gather(*(auth.redeem(client, code) for _ in range(8)))
        assert sorted(answer.status for answer in answers) == [200] + [400] * 7
        assert {answer.body["error"] for answer in answers if answer.status == 400} == {"invalid_grant"}

    with_auth_server(tmp_path, body)


def test_two_processes_race_for_a_code_and_one_gets_it(tmp_path: Path) -> None:
    """TK-03: over one database, each with a connection of its own."""

    async def run() -> None:
        async with auth_server(tmp_path) as one, auth_server(tmp_path) as two:
            client = await one.client()
            for _ in range(5):
                code = await one.code(client)
                answers = await asyncio.gather(*(each.redeem(client, code) for each in (one, two, one, two)))
                assert sorted(answer.status for answer in answers) == [200, 400, 400, 400]

    asyncio.run(asyncio.wait_for(run(), 20))


def test_the_state_holds_no_secret_that_was_given_out(tmp_path: Path) -> None:
    """SEC-06: codes, refresh tokens, client secrets, consent ids and signing keys are stored hashed or sealed."""

    async def body(auth: AuthServer) -> None:
        kept = await auth.registered(token_endpoint_auth_method="client_secret_basic")
        client, secret = kept["client_id"], kept["client_secret"]
        question = await auth.asked(client)
        assert isinstance(question, ConsentRequest)
        code = await auth.code(client)
        answer = await auth.token(
            basic(client, secret), grant_type="authorization_code", code=code, redirect_uri=BACK, code_verifier=VERIFIER
        )
        key = (await auth.keys.active()).to_private_jwk()["d"]
        auth.store.close()
        files = b"".join(read_files(tmp_path / "state").values())
        tokens = answer.body["refresh_token"], answer.body["access_token"]
        for hidden in (secret, question.id, code, key, *tokens):
            assert hidden.encode() not in files

    with_auth_server(tmp_path, body)


def test_no_log_holds_a_secret(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """MCP-12, SEC-06: not even at debug level."""
    caplog.set_level(logging.DEBUG)

    async def body(auth: AuthServer) -> None:
        kept = await auth.registered(token_endpoint_auth_method="client_secret_basic")
        client, headers = kept["client_id"], basic(kept["client_id"], kept["client_secret"])
        question = await auth.asked(client)
        assert isinstance(question, ConsentRequest)
        code = await auth.code(client)
        form = {"code": code, "redirect_uri": BACK, "code_verifier": VERIFIER}
        tokens = (await auth.token(headers, grant_type="authorization_code", **form)).body
        old = {"grant_type": "refresh_token", "refresh_token": tokens["refresh_token"]}
        newer = (await auth.token(headers, **old)).body
        auth.clock.now += 100
        assert (await auth.token(headers, **old)).status == 400
        assert (await auth.token(headers, grant_type="authorization_code", **form)).status == 400
        assert "came again" in caplog.text
        secrets = [kept["client_secret"], headers["Authorization"], code, question.id, VERIFIER]
        for hidden in (*secrets, *(token[name] for token in (tokens, newer) for name in token if "_token" in name)):
            assert str(hidden) not in caplog.text

    with_auth_server(tmp_path, body)


def test_an_approval_is_remembered_for_exactly_its_scopes_and_client(tmp_path: Path) -> None:
    """AZ-07."""

    async def body(auth: AuthServer) -> None:
        client = await auth.client(redirect_uris=[BACK, "https://app.example/other"])
        await auth.granted(client, scope="tools:read tools:web")

        async def remembered(person=ADA, **more: str) -> frozenset[str] | None:
            question = await auth.asked(client, **more)
            assert isinstance(question, ConsentRequest)
            return await auth.authorization.find_remembered_scopes(question.id, person)

        assert await remembered(scope="tools:read") == {"tools:read"}
        assert await remembered(scope="tools:read tools:web") == {"tools:read", "tools:web"}
        assert await remembered(scope="tools:read tools:shell") is None
        assert await remembered() is None
        assert await remembered(scope="tools:read", redirect_uri="https://app.example/other") is None
        assert await remembered(BOB, scope="tools:read") is None
        assert await remembered(replace(ADA, issuer="https://other.example"), scope="tools:read") is None  # SEC-16
        assert await auth.authorization.find_remembered_scopes("no such question", ADA) is None

    with_auth_server(tmp_path, body)


def test_a_client_that_any_program_can_be_is_never_remembered(tmp_path: Path) -> None:
    """AZ-07."""

    async def body(auth: AuthServer) -> None:
        local = "http://127.0.0.1/cb"
        client = await auth.client(redirect_uris=[local, "cursor://anysphere.cursor-mcp/oauth/callback"])
        await auth.code(client, redirect_uri=local)
        question = await auth.asked(client, redirect_uri=local)
        assert isinstance(question, ConsentRequest) and question.client.loopback_only
        assert await auth.authorization.find_remembered_scopes(question.id, ADA) is None

    with_auth_server(tmp_path, body)


def test_people_of_two_issuers_are_never_the_same(tmp_path: Path) -> None:
    """SEC-16."""

    async def body(auth: AuthServer) -> None:
        client = await auth.client()
        mine = await auth.granted(client)
        theirs = await auth.granted(client, replace(ADA, issuer="https://other.example"))
        subjects = {(await auth.tokens.claims(each["access_token"]))["sub"] for each in (mine, theirs)}
        assert len(subjects) == 2
        assert len(await auth.authorization.grants.list_grants(ADA)) == 1

    with_auth_server(tmp_path, body)


def test_an_unanswered_authorization_request_stores_nothing(tmp_path: Path) -> None:
    def content(connection: Any) -> list[list[Any]]:
        tables = connection.exec_driver_sql("SELECT name FROM sqlite_master WHERE type = 'table'").scalars().all()
        return [list(connection.exec_driver_sql(f"SELECT * FROM {table}")) for table in sorted(tables)]

    async def body(auth: AuthServer) -> None:
        client = await auth.client()
        before = await auth.store.transact(content)
        first, *_ = [await auth.asked(client) for _ in range(20)]
        assert isinstance(first, ConsentRequest)
        assert await auth.authorization.find_consent(first.id) == first
        assert await auth.authorization.find_remembered_scopes(first.id, ADA) is None
        assert await auth.store.transact(content) == before
        assert isinstance(await auth.authorization.answer_consent(first.id, ADA, ALL), Redirect)

    with_auth_server(tmp_path, body)


def test_a_request_may_have_four_kib(tmp_path: Path) -> None:
    async def body(auth: AuthServer) -> None:
        asked = query(await auth.client()) + "&x="
        full = asked + "y" * (4_096 - len(asked))
        question = await auth.authorization.open_consent(full)
        assert isinstance(question, ConsentRequest)
        assert len(question.id) < 6_000  # it is part of an address
        assert re.fullmatch(r"[A-Za-z0-9_-]+", question.id)
        refused = await auth.authorization.open_consent(full + "y")
        assert isinstance(refused, ErrorPage) and "4 KiB" in refused.description

    with_auth_server(tmp_path, body)


def test_a_question_that_was_changed_or_is_another_servers_is_none(tmp_path: Path) -> None:
    async def run() -> None:
        async with (
            auth_server(tmp_path / "a") as here,
            auth_server(tmp_path / "b") as foreign,
            auth_server(tmp_path / "a", public_url="https://other.example") as beside,
        ):
            client = await here.client()
            question = await here.asked(client)
            elsewhere = await foreign.asked(await foreign.client())
            assert isinstance(question, ConsentRequest) and isinstance(elsewhere, ConsentRequest)
            good = question.id
            changed = [good[:at] + ("A" if good[at] != "A" else "B") + good[at + 1 :] for at in (0, 5, 100, 300)]
            cut = ["", "A", good[:20], good[:-4], good + "AAAA", f"{good}é", "x" * 100_000]
            for id in (*changed, *cut, elsewhere.id):
                assert await here.authorization.find_consent(id) is None
                assert await here.authorization.find_remembered_scopes(id, ADA) is None
                answer = await here.authorization.answer_consent(id, ADA, ALL)
                assert isinstance(answer, ErrorPage) and answer.status == 410
            assert await beside.authorization.find_consent(good) is None
            assert await here.rows("oauth_used") == 0
            assert isinstance(await here.authorization.answer_consent(good, ADA, ALL), Redirect)

    asyncio.run(asyncio.wait_for(run(), 20))


def test_of_two_servers_with_one_state_each_takes_the_others_question_and_one_answers(tmp_path: Path) -> None:
    async def run() -> None:
        async with auth_server(tmp_path) as one, auth_server(tmp_path) as two:
            question = await one.asked(await one.client())
            assert isinstance(question, ConsentRequest)
            assert await two.authorization.find_consent(question.id) == question
            both = (each.authorization.answer_consent(question.id, ADA, ALL) for each in (one, two, one, two))
            answers = await asyncio.gather(*both)
            assert sorted(type(answer).__name__ for answer in answers) == ["ErrorPage"] * 3 + ["Redirect"]
            assert await two.authorization.find_consent(question.id) is None

    asyncio.run(asyncio.wait_for(run(), 20))


def test_a_repeated_parameter_of_a_token_request_is_refused(tmp_path: Path) -> None:
    """TK-01."""

    async def body(auth: AuthServer) -> None:
        client = await auth.client()
        code = await auth.code(client)
        form = pairs({"grant_type": "authorization_code", "client_id": client, "code": code, "redirect_uri": BACK})
        form.append(("code_verifier", VERIFIER))
        for repeated in form:
            answer = await auth.authorization.token([*form, repeated], {})
            assert (answer.status, answer.body["error"]) == (400, "invalid_request")
        answer = await auth.authorization.token([*form, ("state", "\ud800")], {})
        assert (answer.status, answer.body["error"]) == (400, "invalid_request")
        assert (await auth.authorization.token(form, {})).status == 200

    with_auth_server(tmp_path, body)
