"""`auth = "exchange"`: a person's sign-in here at an identity provider becomes their token there, by either way."""

import contextlib
import hashlib
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest

from tests.clients.raw_client import Server, eventually
from tests.clients.raw_http_client import Site, site
from tests.server.auth import fake_identity_providers
from tests.server.auth.minted_tokens import Signed
from tests.server.auth.sign_in_server import Browser
from tests.server.features.mounts.grants.enterprise_provider import KIND, EnterpriseProvider
from tests.server.features.mounts.grants.far_grants import CLIENT, SECRET, FarGrants, far_grants
from tests.server.features.mounts.grants.test_client_credentials import Start, run
from tests.server.features.mounts.kept_secrets.test_secrets import find_files_with, list_far, principal, set_secret
from tests.server.features.mounts.mounted import url_mount, write_config
from tests.server.features.mounts.test_people import People
from tests.transports.web.test_home import _csrf as find_csrf
from toolgate.server.base.principals.principal import derive_subject

WAYS = ("RFC 8693", "ID-JAG")


class Scene:
    """A server whose people sign in with an identity provider, and a mount that takes its word."""

    def __init__(self, listening: Site, idp: EnterpriseProvider, far: FarGrants) -> None:
        self.site, self.idp, self.far = listening, idp, far
        self.people = People(Signed(listening))
        self.state = listening.state

    def subject(self, who: str) -> str:
        return derive_subject(self.idp.url, who)

    def sign_in(self, who: str) -> Browser:
        self.idp.subject = who
        browser = Browser(self.site.port, {"accept": "text/html"})
        page = browser.get("/login")
        sent = browser.post("/login", {"csrf": page.field("csrf"), "via": "oidc"})
        back = browser.get(f"/callback?{urlencode(self.idp.arrive(sent.location))}")
        assert back.location == "/", back.text
        return browser

    def ask_and_sign_in(self, page: str) -> str:
        """Return where a stranger comes who asks for a page, and signs in at the provider."""
        browser = Browser(self.site.port, {"accept": "text/html"})
        assert browser.get(page).location == "/login"
        sent = browser.post("/login", {"csrf": browser.get("/login").field("csrf"), "via": "oidc"})
        return str(browser.get(f"/callback?{urlencode(self.idp.arrive(sent.location))}").location)

    def call(self, who: str) -> str:
        """Return the text of the result, or of the error."""
        params = {"name": "far__whoami", "arguments": {}}
        _, answered = self.people.request(self.subject(who), "tools/call", params)
        if "error" in answered:
            return str(answered["error"]["message"])
        return str(answered["result"]["content"][0]["text"])

    def wait_listed(self, who: str) -> None:
        self.people.wait_listed(self.subject(who))

    def list_identities(self) -> list[Any]:
        with contextlib.closing(sqlite3.connect(self.state / "state.db")) as database:
            return database.execute("SELECT principal, ended FROM mount_connection").fetchall()


@pytest.fixture
def far() -> Iterator[FarGrants]:
    with far_grants() as opened:
        yield opened


@pytest.fixture
def idp() -> Iterator[EnterpriseProvider]:
    made = EnterpriseProvider()
    with fake_identity_providers.provider(made):
        yield made


pytestmark = pytest.mark.rotated(1)  # the ways


@pytest.fixture(params=WAYS)
def way(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def lines() -> tuple[str, ...]:
    return ()


@pytest.fixture
def scene(tmp_path: Path, far: FarGrants, idp: EnterpriseProvider, way: str, lines: tuple[str, ...]) -> Iterator[Scene]:
    with exchanging_site(tmp_path, far, idp, exchange_mount(far, way, *lines)) as opened:
        yield opened


def exchange_mount(far: FarGrants, way: str, *lines: str) -> str:
    keys = ('auth = "exchange"', f'client_id = "{CLIENT}"', 'client_secret = "${secret:FAR}"')
    where = (f'token_url = "{far.origin}/token"',) if way == "RFC 8693" else (f'audience = "{far.origin}/"',)
    where = () if any(line.startswith("audience") for line in lines) else where
    return url_mount(f"{far.origin}/mcp", "far", *keys, *where, *lines)


@contextlib.contextmanager
def exchanging_site(folder: Path, far: FarGrants, idp: EnterpriseProvider, table: str) -> Iterator[Scene]:
    options = ("--auth", "oauth", "--login", f"oidc={idp.url}", "--allow-users", "*", "--allow-private", "127.0.0.1")
    env = {
        "TOOLGATE_OIDC_ID": fake_identity_providers.CLIENT,
        "TOOLGATE_OIDC_SECRET": fake_identity_providers.SECRET,
    }
    with site(folder / "server", *options, *write_config(folder, table), env=env) as listening:
        set_secret(listening.state, "FAR", SECRET)
        yield Scene(listening, idp, far)


def test_who_signed_in_with_the_provider_has_a_token_there(scene: Scene, way: str) -> None:
    assert "IDENTITY_MISSING" not in scene.site.log()
    scene.sign_in("ada")
    scene.wait_listed("ada")
    assert scene.call("ada") == scene.call("ada") == "ada-there"
    (asked,) = scene.far.asked
    (id_token,) = scene.idp.id_tokens
    if way == "RFC 8693":
        assert asked == {
            "grant_type": "urn:ietf:params:oauth:grant-type:token-exchange",
            "subject_token": id_token,
            "subject_token_type": f"{KIND}id_token",
            "requested_token_type": f"{KIND}access_token",
            "resource": f"{scene.far.origin}/mcp",
            "way": "basic",
        }
        assert not scene.idp.exchanged
    else:
        (grant,) = scene.idp.grants
        assert asked["assertion"] == grant and "subject_token" not in asked
        (exchanged,) = scene.idp.exchanged
        assert exchanged == {
            "grant_type": "urn:ietf:params:oauth:grant-type:token-exchange",
            "subject_token": id_token,
            "subject_token_type": f"{KIND}id_token",
            "requested_token_type": f"{KIND}id-jag",
            "audience": scene.far.origin,
            "resource": f"{scene.far.origin}/mcp",
            "scope": "read",
        }
    for token in (id_token, *scene.idp.refresh, *scene.far.access, *scene.idp.grants, SECRET):
        assert find_files_with(scene.state, token) == [] and token not in scene.site.log()


def test_a_stranger_comes_from_the_provider_to_the_page_that_they_asked_for(scene: Scene) -> None:
    assert scene.ask_and_sign_in("/mounts/tools?name=far") == "/mounts/tools?name=far"
    assert scene.ask_and_sign_in("/mounts/codes") == "/mounts/codes"
    assert scene.ask_and_sign_in("/mounts/tools?page=2&name=far&self=1") == "/mounts/tools?page=2&name=far&self=1"
    strange = "/mounts/tools?name=%2F%2Fevil.example%2F%0D%0A"
    assert scene.ask_and_sign_in("/mounts/tools?name=//evil.example/%0d%0a") == strange


@pytest.mark.rotated(2)  # no person gets the token of another by either way
def test_two_people_have_a_token_each_and_no_client_s_token_goes_on(scene: Scene) -> None:
    for who in ("ada", "bob"):
        scene.sign_in(who)
    for who in ("ada", "bob"):
        scene.wait_listed(who)
    for _ in range(3):
        assert [scene.call(who) for who in ("ada", "bob")] == ["ada-there", "bob-there"]
    assert len(scene.far.asked) == 2
    ours = [*scene.idp.id_tokens, *scene.idp.grants]
    sent = [word for seen in scene.far.seen for word in [seen] if "eyJ" in word]
    assert sent and not [each for each in sent if not any(token in each for token in ours)]
    assert not [each for each in scene.far.seen if each.startswith("Bearer eyJ")]


def test_an_id_token_that_ends_is_refreshed_once(scene: Scene) -> None:
    scene.idp.lifetime = -1  # within the tolerance for clocks
    scene.sign_in("ada")
    (first,) = scene.idp.id_tokens
    scene.idp.lifetime = 300
    scene.wait_listed("ada")
    assert scene.call("ada") == "ada-there"
    used = scene.idp.exchanged or scene.far.asked
    assert {each["subject_token"] for each in used} == {scene.idp.id_tokens[-1]} != {first}
    assert len(scene.idp.used) == len(scene.idp.refresh) == 1
    assert find_files_with(scene.state, next(iter(scene.idp.refresh))) == []


@pytest.mark.rotated(2)
def test_a_refresh_that_answers_for_another_person_ends_it(scene: Scene) -> None:
    scene.idp.lifetime = -1  # within the tolerance for clocks
    scene.sign_in("ada")
    scene.idp.claims = {"sub": "eve"}
    assert scene.people.request(scene.subject("ada"), "tools/list", {})[0] == 200
    assert eventually(lambda: [ended for _, ended in scene.list_identities()] == ["it answered for another person"])
    assert scene.far.asked == []


def test_without_a_refresh_token_the_person_signs_in_again(scene: Scene) -> None:
    scene.idp.offers_refresh, scene.idp.lifetime = False, 15
    scene.sign_in("ada")
    scene.wait_listed("ada")
    assert scene.call("ada") == "ada-there"
    told: list[str] = []

    def is_over() -> bool:
        scene.far.end_access()  # while it holds, no other is asked for
        told.append(scene.call("ada"))
        return told[-1] != "ada-there"

    assert eventually(is_over)
    way = f"sign out at {scene.site.url}/logout, sign in again with 127.0.0.1, then try once more"
    assert told[-1] == f"IDENTITY_MISSING: it takes people whom 127.0.0.1 knows: {way}"
    before = len(scene.far.asked)
    scene.sign_in("ada")
    assert scene.call("ada") == "ada-there", "at once: this failure makes no pause"
    assert len(scene.far.asked) == before + 1


FAULTS = [
    ((400, {"error": "invalid_target", "error_description": "TOKEN"}), "it says invalid_target: …; check audience of"),
    ((400, {"error": "invalid_grant"}), "it says invalid_grant; ask its operator whether you may use it"),
    ((400, {"error": "unsupported_grant_type"}), "it refuses: unsupported_grant_type"),
    ((200, {"access_token": "x", "token_type": "N_A"}), "gives no"),
    ((302, {}), "it refuses: HTTP 302"),
]


@pytest.mark.pairs
@pytest.mark.parametrize(("answer", "told"), FAULTS)
def test_an_exchange_that_is_refused_says_why(scene: Scene, way: str, answer: Any, told: str) -> None:
    scene.sign_in("ada")
    scene.wait_listed("ada")
    scene.call("ada")
    scene.far.end_access()
    status, words = answer
    words = {name: scene.idp.id_tokens[0] if text == "TOKEN" else text for name, text in words.items()}
    answers: list[Any] = scene.far.answers if way == "RFC 8693" else scene.idp.answers
    answers += [(status, words)] * 2
    text = scene.call("ada")
    told = told.replace("gives no", "it sent no bearer token" if way == "RFC 8693" else "gives no grant (ID-JAG)")
    assert text.startswith("TOKEN_REFUSED: ") and told in text, text
    assert scene.idp.id_tokens[0] not in text and scene.idp.id_tokens[0] not in scene.site.log()


@pytest.mark.parametrize("way", ["ID-JAG"])
@pytest.mark.parametrize("lines", [('audience = "https://auth.example"',)])
def test_another_authorization_server_than_the_operator_wrote_gets_no_grant(scene: Scene) -> None:
    scene.sign_in("ada")
    scene.people.request(scene.subject("ada"), "tools/list", {})
    assert eventually(lambda: "TOKEN_REFUSED" in run(scene.state.parent.parent, scene.state, "mount", "logs", "far"))
    assert not scene.idp.exchanged and not scene.far.asked


@pytest.mark.parametrize("way", ["ID-JAG"])
@pytest.mark.parametrize("lines", [('secrets = "own"',)])
def test_the_authorization_server_needs_no_page_and_the_secret_may_be_a_persons_own(scene: Scene) -> None:
    scene.far.metadata = {"authorization_endpoint": None, "code_challenge_methods_supported": None}
    scene.far.subjects = {"the-secret-of-ada": "unused"}
    set_secret(scene.state, "FAR", "the-secret-of-ada", principal(scene.subject("ada")))
    for who in ("ada", "bob"):
        scene.sign_in(who)
    scene.wait_listed("ada")
    assert scene.call("ada") == "ada-there"
    assert list_far(scene.people, scene.subject("bob")) == set()
    assert len(scene.far.asked) == 1


def test_nothing_is_kept_where_no_mount_asks_for_it(tmp_path: Path, far: FarGrants, idp: EnterpriseProvider) -> None:
    with exchanging_site(tmp_path, far, idp, url_mount(f"{far.origin}/mcp", "far", 'auth = "oauth"')) as scene:
        scene.sign_in("ada")
        assert scene.list_identities() == [] and idp.asked[0]["scope"] == "openid email profile"


def test_it_is_no_connection_of_the_first_page_and_goes_with_the_person(scene: Scene) -> None:
    browser = scene.sign_in("ada")
    assert len(scene.list_identities()) == 1
    page = browser.get("/")
    assert "@identity" not in page.text
    assert browser.post("/", {"csrf": find_csrf(page.text), "disconnect": "@identity"}).status == 404
    assert len(scene.list_identities()) == 1
    with contextlib.closing(sqlite3.connect(scene.state / "state.db")) as database, database:
        database.execute("UPDATE mount_connection SET ended = 'the account was removed'")
    assert eventually(lambda: scene.list_identities() == [])
    assert eventually(lambda: scene.idp.revoked == list(scene.idp.refresh)), scene.site.log()


def test_without_a_provider_a_call_and_doctor_say_so(start: Start, tmp_path: Path, far: FarGrants) -> None:
    write_config(tmp_path, exchange_mount(far, "RFC 8693"))
    server: Server = start("--config", str(tmp_path / "mounts.toml"))
    set_secret(server.state, "FAR", SECRET)
    server.request("tools/list")
    told = run(tmp_path, server.state, "mount", "test", "far")
    assert "IDENTITY_MISSING: people have tokens there who sign in over HTTP with --login oidc" in told
    said = run(tmp_path, server.state, "doctor", "--browser", "none")
    assert "far can be called by nobody, as no identity provider signs people in here" in said
    assert far.asked == []


def test_a_second_toolgate_takes_the_providers_word(tmp_path: Path, idp: EnterpriseProvider, far: FarGrants) -> None:
    """Its authorization server is Authlib's, and verifies the grant by the provider's keys."""
    (tmp_path / "clients.toml").write_text(
        f"""[[client]]
id = "{CLIENT}"
name = "A gateway"
grant_types = ["urn:ietf:params:oauth:grant-type:jwt-bearer"]
secret_sha256 = "{hashlib.sha256(SECRET.encode()).hexdigest()}"
scope = "tools:read tools:web tools:workflow"
"""
    )
    told = ("--auth", "oauth", "--clients", str(tmp_path / "clients.toml"), "--enterprise-issuers", idp.url)
    with site(tmp_path / "far", *told, "--allow-private", "127.0.0.1") as second:
        keys = (
            'auth = "exchange"',
            f'client_id = "{CLIENT}"',
            'client_secret = "${secret:FAR}"',
            f'audience = "{second.url}"',
        )
        table = url_mount(f"{second.url}/mcp", "far", *keys)
        with exchanging_site(tmp_path, far, idp, f'{table}scopes = ["tools:read"]\n') as scene:
            scene.sign_in("ada")
            assert scene.people.request(scene.subject("ada"), "tools/list", {})[0] == 200
            told = "LIST_FAILED: it refused to list what it has: it wants more rights: tools:workflow"
            assert eventually(lambda: told in run(tmp_path, scene.state, "mount", "logs", "far"))
            write_config(tmp_path, f'{table}scopes = ["tools:read", "tools:workflow"]\n')
            scene.wait_listed("ada")
            asked = [(each["audience"], each["scope"]) for each in idp.exchanged]
            assert asked == [(second.url, "tools:read"), (second.url, "tools:read tools:workflow")]
