"""Attacks on the token endpoint and the like: stolen, repeated and raced codes and tokens, clients under false names,
bodies that are no form."""

import base64
import json
import threading
import urllib.parse
from collections.abc import Callable

import pytest

from tests.clients.raw_client import PATIENCE
from tests.server.auth.authorization_in_process import basic
from tests.server.auth.hostile.target import BACK, FORM, LOOP, PORT, QUERY, Target, refused, shut_out
from tests.server.auth.sign_in_server import PageAnswer

AT_ONCE = 8


def at_once(work: Callable[[], PageAnswer]) -> list[PageAnswer]:
    """Return the answers to eight simultaneous requests."""
    barrier, got = threading.Barrier(AT_ONCE), list[PageAnswer]()

    def run() -> None:
        barrier.wait(PATIENCE)
        got.append(work())

    threads = [threading.Thread(target=run) for _ in range(AT_ONCE)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
    assert len(got) == AT_ONCE
    return got


# -- codes

WRONG = {
    "another verifier": {"code_verifier": "w" * 43},
    "no verifier": {"code_verifier": None},
    "an empty verifier": {"code_verifier": ""},
    "a short verifier": {"code_verifier": "w" * 42},
    "a long verifier": {"code_verifier": "w" * 129},
    "a verifier with a line": {"code_verifier": "w" * 43 + "\n"},
    "a verifier of other letters": {"code_verifier": "ü" * 43},
    "a redirect registered, but not asked": {"redirect_uri": QUERY},
    "another port": {"redirect_uri": PORT},
    "loopback": {"redirect_uri": LOOP},
    "a redirect in another case": {"redirect_uri": "https://APP.example/cb"},
    "a redirect with a slash": {"redirect_uri": f"{BACK}/"},
    "an evil redirect": {"redirect_uri": "https://evil.example/cb"},
    "no client": {"client_id": None},
    "an unknown client": {"client_id": "x"},
    "a foreign resource": {"resource": "https://evil.example/mcp"},
    "a secret for one that has none": {"client_secret": "x"},
    "an assertion of nobody": {"client_assertion": "a.b.c", "client_assertion_type": "x"},
    "no grant type": {"grant_type": None},
    "another grant type": {"grant_type": "password"},
    "a refresh": {"grant_type": "refresh_token"},
    "client credentials": {"grant_type": "client_credentials"},
    "the implicit grant": {"grant_type": "implicit"},
    "device code": {"grant_type": "urn:ietf:params:oauth:grant-type:device_code"},
    "token exchange": {"grant_type": "urn:ietf:params:oauth:grant-type:token-exchange"},
    "an assertion grant": {"grant_type": "urn:ietf:params:oauth:grant-type:jwt-bearer", "assertion": "e30.e30."},
    "an upper grant type": {"grant_type": "AUTHORIZATION_CODE"},
}


@pytest.fixture(scope="module")
def held(target: Target) -> tuple[str, str]:
    """Return a valid code, which the tests below only try to redeem wrongly, and its verifier."""
    verifier = target.verifier()
    return target.code(verifier), verifier


@pytest.mark.parametrize("changed", WRONG.values(), ids=WRONG)
def test_tk_02_sec_04_sec_05_a_code_is_for_the_client_and_resource_it_was_issued_for(
    target: Target, held: tuple[str, str], changed: dict[str, str | None]
) -> None:
    refused(target.exchange(*held, **changed))


def test_sec_04_another_client_gets_nothing_for_a_code_and_does_not_burn_it(target: Target) -> None:
    verifier = target.verifier()
    code = target.code(verifier)
    thief = json.loads(target.register().body)["client_id"]
    refused(target.exchange(code, verifier, client_id=thief), "invalid_grant")
    id, secret = target.confidential
    refused(target.exchange(code, verifier, client_id=id, client_secret=secret), "invalid_grant")
    assert target.exchange(code, verifier).status == 200


@pytest.mark.parametrize(
    "code", ["", "x", "../../etc", "'; DROP TABLE oauth_code; --", "a" * 60_000, "é", "\x01", "%00", "null", "[]"]
)
def test_az_06_a_made_up_code_is_refused(target: Target, code: str) -> None:
    refused(target.exchange(code, "v" * 43), "invalid_grant", "invalid_request")


def test_tk_03_of_eight_redemptions_at_once_one_succeeds_and_what_it_got_dies_by_the_others(target: Target) -> None:
    verifier = target.verifier()
    code = target.code(verifier)
    got = at_once(lambda: target.exchange(code, verifier))
    assert sorted(each.status for each in got) == [200] + [400] * (AT_ONCE - 1)
    (one,) = (json.loads(each.body) for each in got if each.status == 200)
    for each in got:
        if each.status == 400:
            refused(each, "invalid_grant")
    assert not target.works(one["access_token"])
    refused(target.refresh(one["refresh_token"]), "invalid_grant")


def test_tk_03_sec_08_a_code_that_comes_again_ends_all_that_was_made_of_it(target: Target) -> None:
    verifier = target.verifier()
    code = target.code(verifier)
    held = json.loads(target.exchange(code, verifier).body)
    assert target.works(held["access_token"])
    refused(target.exchange(code, verifier), "invalid_grant")
    assert not target.works(held["access_token"])
    refused(target.refresh(held["refresh_token"]), "invalid_grant")


# -- refresh tokens


def test_tk_04_a_refresh_race_within_the_grace_ends_no_family(target: Target) -> None:
    held = target.granted()
    got = at_once(lambda: target.refresh(held["refresh_token"]))
    assert [each.status for each in got] == [200] * AT_ONCE
    following = {json.loads(each.body)["refresh_token"] for each in got}
    assert len(following) == 1  # the family never forks
    assert all(target.works(json.loads(each.body)["access_token"]) for each in got)
    (token,) = following
    assert token != held["refresh_token"]
    assert target.refresh(token).status == 200


def test_sec_08_after_the_grace_an_old_refresh_token_ends_the_family(target: Target) -> None:
    held = target.granted()
    new = json.loads(target.refresh(held["refresh_token"]).body)
    target.signed.age_refresh_tokens(1_000)
    refused(target.refresh(held["refresh_token"]), "invalid_grant")
    refused(target.refresh(new["refresh_token"]), "invalid_grant")
    assert not target.works(new["access_token"])


def test_tk_04_tk_05_tk_06_a_refresh_token_is_its_clients_and_gives_no_more_than_it_had(target: Target) -> None:
    held = target.granted()
    token = held["refresh_token"]
    thief = json.loads(target.register().body)["client_id"]
    id, secret = target.confidential
    for changed, errors in (
        ({"client_id": thief}, ("invalid_grant",)),
        ({"client_id": id, "client_secret": secret}, ("invalid_grant",)),
        ({"client_id": None}, ("invalid_client",)),
        ({"client_id": "x"}, ("invalid_client",)),
        ({"scope": "tools:shell"}, ("invalid_scope",)),
        ({"scope": "tools:read tools:shell"}, ("invalid_scope",)),
        ({"scope": "*"}, ("invalid_scope",)),
        ({"resource": "https://evil.example/mcp"}, ("invalid_target",)),
        ({"refresh_token": held["access_token"]}, ("invalid_grant",)),
        ({"refresh_token": token[:-1]}, ("invalid_grant",)),
        ({"refresh_token": token.swapcase()}, ("invalid_grant",)),
        ({"refresh_token": f"{token} "}, ("invalid_grant",)),
        ({"refresh_token": None}, ("invalid_request",)),
        ({"refresh_token": "'; --"}, ("invalid_grant",)),
    ):
        refused(
            target.refresh(
                **{"token": token, **changed} if "refresh_token" not in changed else {"token": "", **changed}
            ),
            *errors,
        )
    good = target.refresh(token)
    assert good.status == 200  # none of it did the family any harm
    assert json.loads(good.body)["scope"] == "tools:read"


def test_sec_07_a_refresh_token_opens_no_door_and_an_access_token_is_no_code(target: Target) -> None:
    held = target.granted()
    assert target.works(held["access_token"])
    assert not target.works(held["refresh_token"])
    refused(target.exchange(held["access_token"], "v" * 43), "invalid_grant")
    refused(target.exchange(held["refresh_token"], "v" * 43), "invalid_grant")


# -- who the client is


def test_sec_14_a_client_with_a_secret_is_refused_without_it(target: Target) -> None:
    id, secret = target.confidential
    verifier = target.verifier()
    code = target.code(verifier, client_id=id)
    other = {"client_id": None, "client_secret": None}
    for form, headers in (
        ({"client_id": id}, {}),
        ({"client_id": id, "client_secret": "wrong"}, {}),
        ({"client_id": id, "client_secret": f"{secret} "}, {}),
        ({"client_id": id, "client_secret": secret.swapcase()}, {}),
        ({"client_id": id, "client_secret": secret[:-1]}, {}),
        ({"client_id": target.client, "client_secret": secret}, {}),
        ({"client_id": id, "client_secret": secret}, basic(id, secret)),
        ({"client_secret": secret}, basic(id, secret)),
        ({"client_id": target.client}, basic(id, secret)),
        (other, basic(id, "wrong")),
        (other, basic(id, "")),
        (other, basic("", secret)),
        (other, basic(target.client, secret)),
        (other, basic(target.client, "")),
        (other, {"Authorization": "Basic !!!!"}),
        (other, {"Authorization": "Basic"}),
        (other, {"Authorization": "Basic " + base64.b64encode(b"\xff\xfe:\xff").decode()}),
        (other, {"Authorization": f"Bearer {secret}"}),
        (other, {"Authorization": f"Digest {secret}"}),
        ({"client_id": id, "client_assertion": secret, "client_assertion_type": "x"}, {}),
        ({"client_id": id, "client_secret": secret, "client_assertion": "a.b.c"}, {}),
    ):
        given = {"grant_type": "authorization_code", "code": code, "code_verifier": verifier, "redirect_uri": BACK}
        got = target.form("/token", {**given, **form}, **headers)
        refused(got, "invalid_client", "invalid_request")
        if "Authorization" in headers and got.status == 401:
            assert got.headers["www-authenticate"].startswith("Basic")
    good = {"grant_type": "authorization_code", "code": code, "code_verifier": verifier, "redirect_uri": BACK}
    assert target.form("/token", good, **basic(id, secret)).status == 200


ENDPOINTS = ("/token", "/revoke", "/introspect")


@pytest.mark.parametrize("path", ENDPOINTS)
@pytest.mark.parametrize(
    "query",
    ["client_secret=s", "access_token=t", "client_id=x&client_secret=y", "grant_type=refresh_token", "token=x", "a=b"],
)
def test_sec_14_pr_08_nothing_is_taken_from_a_url(target: Target, path: str, query: str) -> None:
    refused(target.form(f"{path}?{query}", {"grant_type": "refresh_token", "token": "x"}), "invalid_request")


@pytest.mark.parametrize("path", ENDPOINTS)
@pytest.mark.parametrize(
    "kind",
    [
        "multipart/form-data; boundary=x",
        "multipart/form-data",
        "application/json",
        "application/jwt",
        "text/plain",
        "text/plain; application/x-www-form-urlencoded",
        "application/x-www-form-urlencodedx",
        "application/xml",
        "*/*",
        "",
    ],
)
def test_tk_01_sec_18_only_a_form_is_read(target: Target, path: str, kind: str) -> None:
    body = b"grant_type=authorization_code&code=x&client_id=y&token=z"
    if kind.startswith("multipart"):
        body = b'--x\r\nContent-Disposition: form-data; name="code"\r\n\r\nx\r\n--x--\r\n'
    refused(target.browser().ask("POST", path, body, content_type=kind), "invalid_request")


GOOD = "grant_type=authorization_code&code=c&client_id=i&token=t"
BODIES = {
    "two codes": f"{GOOD}&code=d".encode(),
    "two clients": f"{GOOD}&client_id=j".encode(),
    "two grant types": f"{GOOD}&grant_type=refresh_token".encode(),
    "two tokens": f"{GOOD}&token=t".encode(),
    "two names, one encoded": f"{GOOD}&%63ode=d".encode(),
    "an empty second": f"{GOOD}&code=".encode(),
    "NUL": f"{GOOD}&x=%00".encode(),
    "a raw NUL": f"{GOOD}&x=\0".encode(),
    "a NUL in a name": f"{GOOD}&x%00y=1".encode(),
    "no UTF-8": GOOD.encode() + b"&x=\xff\xfe",
    "no UTF-8, encoded": f"{GOOD}&x=%ff%fe".encode(),
    "overlong": f"{GOOD}&x=%c0%af".encode(),
    "a surrogate": f"{GOOD}&x=%ed%a0%80".encode(),
    "many": ("&".join(f"a{n}=1" for n in range(5_000))).encode(),
    "huge": f"{GOOD}&x={'y' * 70_000}".encode(),
    "a huge name": f"{GOOD}&{'y' * 70_000}=x".encode(),
    "empty": b"",
    "no pairs": b"&&&&",
    "percents": b"%%%=%%%",
    "JSON": b'{"grant_type": "authorization_code"}',
    "deep JSON": b"[" * 60_000,
    "zipped": b"\x1f\x8b\x08\x00\x00\x00",
}


@pytest.mark.parametrize("path", ENDPOINTS)
@pytest.mark.parametrize("body", BODIES.values(), ids=BODIES)
def test_sec_18_a_body_that_is_no_plain_form_is_refused(target: Target, path: str, body: bytes) -> None:
    refused(target.browser().ask("POST", path, body, content_type=FORM))


def test_sec_18_a_body_that_says_it_is_packed_is_not_unpacked(target: Target) -> None:
    refused(target.browser().ask("POST", "/token", GOOD.encode(), content_type=FORM, content_encoding="gzip"))


METADATA = {
    "no JSON": b"{",
    "empty": b"",
    "a list": b"[]",
    "null": b"null",
    "a number": b"7",
    "deep lists": b"[" * 60_000,
    "deep objects": b'{"a":' * 10_000,
    "a missing list": b'{"redirect_uris":null}',
    "huge": b'{"client_name":"' + b"a" * 70_000 + b'"}',
    "no UTF-8": b'{"client_name":"\xff"}',
    "a big number": b'{"redirect_uris":' + b"9" * 5_000 + b"}",
    "a float beyond all": b'{"redirect_uris":1e999999}',
    "a lone surrogate": b'{"redirect_uris":["https://app.example/\\ud800"]}',
    "no redirects": b"{}",
    "an empty list": b'{"redirect_uris":[]}',
    "a string": b'{"redirect_uris":"https://app.example/cb"}',
    "an object": b'{"redirect_uris":{"0":"https://app.example/cb"}}',
    "too many": json.dumps({"redirect_uris": [f"https://app.example/{n}" for n in range(11)]}).encode(),
}


@pytest.mark.parametrize("body", METADATA.values(), ids=METADATA)
def test_rg_02_rg_05_sec_18_such_metadata_registers_no_client(target: Target, body: bytes) -> None:
    got = target.posted("/register", body)
    shut_out(got, 400, 413)
    assert json.loads(got.body)["error"] in ("invalid_request", "invalid_redirect_uri", "invalid_client_metadata")


@pytest.mark.parametrize("depth", [10, 300, 500, 700, 900, 990, 1_000, 5_000])
def test_sec_18_deep_metadata_is_taken_or_refused_and_breaks_nothing(target: Target, depth: int) -> None:
    deep = b'{"redirect_uris":["https://app.example/cb"],"jwks":{"keys":[{"x":%b%b}]}}' % (b"[" * depth, b"]" * depth)
    got = target.posted("/register", deep)
    assert got.status in (201, 400), got.text[:300]
    if got.status == 201:
        id = json.loads(got.body)["client_id"]
        asked = target.browser().get(target.asking(target.verifier(), client_id=id))
        assert asked.status == 303
        assert target.browser().get(asked.location).status == 200
        assert target.exchange("x", "v" * 43, client_id=id).status in (400, 401)


@pytest.mark.parametrize("kind", [FORM, "text/plain", "multipart/form-data; boundary=x", "", "application/jwt"])
def test_rg_02_a_registration_is_json(target: Target, kind: str) -> None:
    shut_out(target.posted("/register", {"redirect_uris": [BACK]}, content_type=kind), 400, 415)


def test_rg_03_tk_08_tk_09_registering_gains_no_grant_and_no_scope_that_is_the_operators(target: Target) -> None:
    got = target.register(
        client_id="chosen",
        client_secret="chosen",
        grant_types=["client_credentials", "implicit", "password", "authorization_code"],
        response_types=["token"],
        scope="tools:read admin *",
        trusted=True,
        kind="configured",
        token_endpoint_auth_method="client_secret_basic",
    )
    said = json.loads(got.body)
    assert got.status == 201
    assert said["client_id"] != "chosen" and said["client_secret"] != "chosen"
    assert said["grant_types"] == ["authorization_code"]
    assert said["response_types"] == ["code"]
    assert said["scope"] == "tools:read"
    proof = basic(said["client_id"], said["client_secret"])
    refused(
        target.form("/token", {"grant_type": "client_credentials"}, **proof),
        "unauthorized_client",
        "unsupported_grant_type",
    )


# -- revoking and asking about tokens


def test_tk_11_a_client_revokes_and_reads_its_own_tokens_only(target: Target) -> None:
    held = target.granted()
    thief = json.loads(target.register().body)["client_id"]
    id, secret = target.confidential
    for token in (held["access_token"], held["refresh_token"]):
        assert target.form("/revoke", {"token": token, "client_id": thief}).status in (200, 400)
        assert target.form("/revoke", {"token": token}, **basic(id, secret)).status in (200, 400)
        refused(target.form("/revoke", {"token": token}), "invalid_client")
        refused(target.form("/introspect", {"token": token, "client_id": target.client}), "invalid_client")
        refused(target.form("/introspect", {"token": token}), "invalid_client")
        asked = target.form("/introspect", {"token": token}, **basic(id, secret))
        assert (asked.status, json.loads(asked.body)) == (200, {"active": False})
    assert target.works(held["access_token"])
    assert target.refresh(held["refresh_token"]).status == 200


@pytest.mark.parametrize("path", [*ENDPOINTS, "/register"])
@pytest.mark.parametrize("method", ["GET", "PUT", "DELETE", "PATCH", "HEAD", "TRACE", "PROPFIND"])
def test_an_endpoint_has_its_one_method(target: Target, path: str, method: str) -> None:
    got = target.browser().ask(method, f"{path}?{urllib.parse.urlencode({'code': 'c'})}")
    assert got.status == 405
    assert "POST" in got.headers["allow"]
