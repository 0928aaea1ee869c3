"""Attacks on people: forged forms, planted sessions, frames, names with markup, and guessing."""

import json
from pathlib import Path

import pytest

from tests.server.auth.hostile.target import (
    ADA,
    BACK,
    FORM,
    PASSWORD,
    Attacker,
    Target,
    consenting,
    runs_nothing_foreign,
    shut_out,
    target_site,
    told,
)

PAGES = ("/login", "/account", "/logout", "/authorize", "/consent?question=x", "/callback?state=x", "/login?question=x")


def question(target: Target, browser: Attacker, **more: str) -> str:
    """Return the path of the consent page of a new request."""
    got = browser.get(target.asking(target.verifier(), prompt="consent", **more))
    assert got.status == 303
    return got.location


@pytest.mark.parametrize("path", PAGES)
def test_sec_10_az_07_az_10_no_page_is_framed_kept_or_runs_anything(target: Target, path: str) -> None:
    assert target.ada is not None
    for browser in (target.browser(), target.ada):
        got = browser.get(path)
        assert got.headers["cache-control"] == "no-store"
        assert got.headers["x-content-type-options"] == "nosniff"
        assert runs_nothing_foreign(got)
        if got.status == 303:
            continue
        assert got.headers["x-frame-options"] == "DENY"
        assert "frame-ancestors 'none'" in got.headers["content-security-policy"]
        assert "default-src 'none'" in got.headers["content-security-policy"]
        assert got.headers["referrer-policy"] in ("same-origin", "no-referrer")
        assert "http://" not in got.text.replace(target.url, "") or "https://app.example" in got.text


FORGERIES: dict[str, dict[str, str]] = {
    "no token": {"csrf": ""},
    "another token": {"csrf": "0" * 64},
    "a long token": {"csrf": "0" * 30_000},
    "a token in another script": {"csrf": "٠" * 64},
    "another question": {"question": "x"},
    "no question": {"question": ""},
    "another way in": {"via": "github"},
}


@pytest.mark.parametrize("changed", FORGERIES.values(), ids=FORGERIES)
@pytest.mark.parametrize("decision", ["approve", "deny"])
def test_sec_11_a_forged_answer_answers_nothing(target: Target, changed: dict[str, str], decision: str) -> None:
    assert target.ada is not None
    path = question(target, target.ada)
    page = target.ada.get(path)
    got = target.ada.post("/consent", consenting(page, decision=decision, **changed))
    shut_out(got, 403, 410)
    assert target.ada.post("/consent", consenting(page)).status == 303  # it still waits


def test_sec_11_a_form_of_one_browser_or_question_is_none_of_anothers(target: Target) -> None:
    assert target.ada is not None
    first, second = (target.ada.get(question(target, target.ada)) for _ in range(2))
    shut_out(target.ada.post("/consent", consenting(first, csrf=second.field("csrf"))), 403)
    for kind in ("cross-site", "same-site"):
        shut_out(target.ada.post("/consent", consenting(first), sec_fetch_site=kind), 403)
    got = target.browser().post("/consent", consenting(first))
    assert got.status in (303, 403)
    assert "code=" not in got.headers.get("location", "")
    got = target.ada.get("/consent?" + "&".join(f"{name}={value}" for name, value in consenting(first)))
    assert got.status in (200, 400)  # a GET asks; it never answers
    for origin in ("https://evil.example", "null", f"{target.url}.evil.example"):
        assert target.ada.post("/consent", consenting(first), origin=origin).status == 403
    for kind, status in {"application/json": 404, "text/plain": 400, "multipart/form-data; boundary=x": 400}.items():
        assert target.ada.ask("POST", "/consent", b"decision=approve", content_type=kind).status == status
    assert target.ada.post("/consent", consenting(first)).status == 303


def test_sec_11_az_06_a_question_is_answered_once(target: Target) -> None:
    assert target.ada is not None
    page = target.ada.get(question(target, target.ada))
    assert "code" in told(target.ada.post("/consent", consenting(page)))
    shut_out(target.ada.post("/consent", consenting(page, decision="deny")), 410)
    shut_out(target.ada.get(f"/consent?question={page.field('question')}"), 410)


def test_a_person_grants_no_more_than_was_asked(target: Target) -> None:
    assert target.ada is not None
    page = target.ada.get(question(target, target.ada))
    verifier = target.verifier()
    page = target.ada.get(target.ada.get(target.asking(verifier, prompt="consent")).location)
    more = [*consenting(page), ("scope", "tools:shell"), ("scope", "*"), ("scope", "tools:read tools:shell")]
    code = told(target.ada.post("/consent", more))["code"]
    assert json.loads(target.exchange(code, verifier).body)["scope"] == "tools:read"


def test_sec_11_a_sign_in_never_uses_a_planted_session(target: Target) -> None:
    victim = target.browser()
    name = f"toolgate-{target.port}-session"
    victim.cookies[name] = "A" * 43
    victim.sign_in("/login", ADA, PASSWORD)
    assert victim.cookies[name] != "A" * 43
    thief = target.browser()
    thief.cookies[name] = "A" * 43
    assert thief.get("/account").location == "/login"
    first = victim.cookies[name]
    other = target.browser()
    other.cookies[name] = first
    other.get("/login?switch=1")
    assert other.sign_in("/login?switch=1", ADA, PASSWORD).status == 303
    assert other.cookies[name] != first
    thief.cookies[name] = first  # what was there before is over
    assert thief.get("/account").location == "/login"


@pytest.mark.parametrize("value", ["", "x", "A" * 43, "A" * 42, "' OR 1=1 --", "../../x", "null", "é", "A" * 5_000])
def test_a_made_up_cookie_signs_no_person_in(target: Target, value: str) -> None:
    browser = target.browser()
    for name in (f"toolgate-{target.port}-session", "__Host-toolgate-session", "session"):
        browser.cookies[name] = value
    assert browser.get("/account").location == "/login"


def test_sec_11_signing_in_and_out_take_a_form_of_ours(target: Target) -> None:
    fields = {"question": "", "username": ADA, "password": PASSWORD}
    for csrf in ("", "0" * 64):
        shut_out(target.browser().post("/login", {**fields, "csrf": csrf}), 403)
    assert target.ada is not None
    shut_out(target.ada.post("/logout", {"csrf": "x"}), 403)
    shut_out(target.ada.post("/account", {"csrf": "x", "grant": "1"}), 403)
    assert target.ada.get("/logout").status == 200
    assert target.ada.get("/account").status == 200  # none of it signed her out


NAMES = [
    "<script>alert(1)</script>",
    "\"'><img src=x onerror=alert(1)>",
    "{{ 7*7 }}{% print 1 %}",
    "Claude\u202e\u2066evil",
    "Claude\r\nSet-Cookie: a=b",
    "\x00\x1b[31mred",
    "C" * 9_000,
    "Ｃｌａｕｄｅ",
]


@pytest.mark.parametrize("name", NAMES, ids=range(len(NAMES)))
def test_sec_12_mcp_01_rg_05_whatever_a_client_calls_itself_its_host_is_shown_and_nothing_runs(
    target: Target, name: str
) -> None:
    assert target.ada is not None
    got = target.register(
        client_name=name, redirect_uris=["https://evil.example/cb"], logo_uri="https://evil.example/l"
    )
    id = json.loads(got.body)["client_id"]
    path = question(target, target.ada, client_id=id, redirect_uri="https://evil.example/cb")
    page = target.ada.get(path)  # although she is signed in she is asked
    assert page.status == 200
    assert "evil.example</bdi>" in page.text and "not verified" in page.text
    assert "<script" not in page.text and "<img" not in page.text and "49" not in page.text.split("<form")[0][-200:]
    assert "\u202e" not in page.text and "\x1b" not in page.text and "\x00" not in page.text
    assert len(page.body) < 20_000


def test_sec_12_az_07_a_second_client_of_the_same_name_needs_its_own_consent(target: Target) -> None:
    assert target.ada is not None
    target.code(target.verifier())
    other = json.loads(target.register(redirect_uris=["https://evil.example/cb"]).body)["client_id"]
    got = target.ada.get(target.asking(target.verifier(), client_id=other, redirect_uri="https://evil.example/cb"))
    assert got.location.startswith("/consent?question=")
    got = target.ada.get(target.asking(target.verifier(), scope="tools:shell"))
    assert got.location.startswith("/consent?question=")  # nor does what was approved lend a scope


def test_az_08_mcp_02_an_unexpected_callback_signs_no_person_in(target: Target) -> None:
    for query in ("", "?code=a&state=b", "?state=", "?error=x&state=y", "?code=a&code=b&state=c", "?id_token=x#y"):
        got = target.browser().get(f"/callback{query}")
        shut_out(got, 400)


@pytest.mark.parametrize("path", ["/login", "/consent", "/account", "/logout"])
@pytest.mark.parametrize("body", [b"", b"\xff\xfe", b"a=b&a=c", b"csrf=%00", b"x=" + b"y" * 70_000, b"[" * 9_000])
def test_sec_18_a_form_that_is_none_is_no_fault_of_ours(target: Target, path: str, body: bytes) -> None:
    got = target.browser().ask("POST", path, body, content_type=FORM)
    assert got.status in (303, 400, 403, 410, 413)
    assert not got.headers.get("location", "").startswith(BACK)


def test_sec_09_no_form_is_ever_sent_on(target: Target) -> None:
    """A POST is answered with 303, never 307 or 308, with or without credentials."""
    assert target.ada is not None
    page = target.ada.get(question(target, target.ada))
    for got in (
        target.ada.post("/consent", consenting(page)),
        target.browser().sign_in("/login", ADA, PASSWORD),
        target.browser().post("/logout", {"csrf": "x"}),
    ):
        assert got.status == 303


def test_mcp_09_every_url_for_clients_and_people_is_http(target: Target) -> None:
    """Checks the metadata, the challenge and the pages' own links, which a client may open."""
    metadata = json.loads(target.browser().get("/.well-known/oauth-authorization-server").body)
    urls = [value for name, value in metadata.items() if name.endswith(("_endpoint", "_uri")) or name == "issuer"]
    assert len(urls) > 5
    assert all(url.startswith(f"{target.url}/") or url == target.url for url in urls)


def test_sec_17_guessing_is_slowed_down_for_a_name_and_for_all_names(tmp_path: Path) -> None:
    with target_site(tmp_path / "guessed") as target:
        for names in (["nobody"] * 40, [f"n{number}" for number in range(80)]):
            statuses = [target.browser().sign_in("/login", name, "a wrong password").status for name in names]
            assert set(statuses) == {403, 429}
            assert statuses.count(403) < 40
        got = target.browser().sign_in("/login", ADA, "a wrong password")
        assert got.status in (403, 429)
        assert ADA not in target.log().replace("ada-", "") or "wrong password" not in target.log()


def test_sec_17_the_pairing_code_is_not_guessed_and_dies_with_the_first_account(tmp_path: Path) -> None:
    with target_site(tmp_path / "paired") as target:
        page = target.browser()
        fields = {
            "csrf": page.get("/login").field("csrf"),
            "question": "",
            "username": "eve",
            "password": "another one",
        }
        from tests.server.auth.hostile.target import paired

        for code in (paired(target), "", "A" * 26, "0", paired(target).lower()):
            shut_out(page.post("/login", {**fields, "code": code}), 403, 429)
        assert 'name="code"' not in page.get("/login").text
