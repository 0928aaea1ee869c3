"""People sign in at a mounted server, each for themselves: there and back, tokens, their ends, and attacks."""

import base64
import http.client
import json
import re
import socket
import sqlite3
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import parse_qsl, quote, urlencode, urlsplit

import pytest

from tests.clients.raw_client import eventually
from tests.server.auth.minted_tokens import Signed, signed_site
from tests.server.auth.sign_in_server import Browser, PageAnswer
from tests.server.features.mounts.kept_secrets.test_secrets import find_files_with, set_secret
from tests.server.features.mounts.mounted import url_mount, write_config
from tests.server.features.mounts.sign_in.far_sign_in import HUGE, FarSignIn, far_sign_in
from tests.servers import forked_command
from tests.servers.forked_command import COMMAND
from tests.servers.home_page_server import AppUser
from tests.transports.web.test_home import _csrf as find_csrf
from toolgate.server.features.mounts.upstream.errors import CODES

BASIC, POST = "client_secret_basic", "client_secret_post"
AUTH = ('auth = "oauth"', 'scope = "tools:shell"')
CONNECT = "far__connect"  # what a person is shown who never connected
OURS = ('client_id = "ours"', 'client_secret = "${secret:FAR}"', 'scopes = ["a", "b"]')


class Scene:
    """A server with the mount, and two people with apps."""

    def __init__(self, signed: Signed, far: FarSignIn) -> None:
        self.signed, self.far = signed, far
        self.url, self.state = signed.site.url, signed.site.state
        self.ada, self.bob = AppUser(signed, "ada", "Fern"), AppUser(signed, "bob", "Workbench")

    def leave(self, browser: Browser) -> PageAnswer:
        """Return the answer to the form of our own page before a sign-in."""
        page = browser.get("/mounts/connect?name=far")
        if page.status != 200:
            return page
        fields = {name: page.field(name) for name in ("csrf", "name", "shown")}
        return browser.post("/mounts/connect", fields)

    def visit(self, location: str) -> dict[str, str]:
        """Go to the authorization server, and return the query that it sends the browser back with."""
        parts = urlsplit(location)
        with closing(http.client.HTTPConnection(parts.hostname or "", parts.port)) as there:
            there.request("GET", f"{parts.path}?{parts.query}")
            back = there.getresponse().headers["Location"]
        assert back.startswith(f"{self.url}/mounts/callback?"), back
        return dict(parse_qsl(urlsplit(back).query))

    def connect(self, who: AppUser, subject: str = "ada-there") -> PageAnswer:
        self.far.subject = subject
        browser = who.browser()
        return come_back(browser, self.visit(self.leave(browser).location))

    def call(self, who: AppUser, tool: str = "far__whoami") -> str:
        """Return the text of the result, or of the error."""
        _, raw, said = who.ask("tools/call", {"name": tool, "arguments": {}})
        answered = said or json.loads(raw.decode().rpartition("data: ")[2])
        if "error" in answered:
            return str(answered["error"]["message"])
        return str(answered["result"]["content"][0]["text"])

    def list_far(self, who: AppUser) -> set[str]:
        _, raw, said = who.ask("tools/list", {})
        listed = said or json.loads(raw.decode().rpartition("data: ")[2])
        return {tool["name"] for tool in listed["result"]["tools"] if tool["name"].startswith("far__")}

    def wait_listed(self, who: AppUser) -> None:
        assert eventually(lambda: "far__whoami" in self.list_far(who)), self.signed.site.log()

    def change(self, words: str) -> None:
        with closing(sqlite3.connect(self.state / "state.db")) as database, database:
            database.execute(words)


AnyScene = TypeVar("AnyScene", bound=Scene)


def read_code(page: PageAnswer) -> str:
    """Return the code of a refusal, which its page links to."""
    codes = re.findall(r'<a href="/mounts/codes#([A-Z_]+)">\1</a>', page.text)
    assert len(codes) == 1 and codes[0] in CODES, page.text
    return str(codes[0])


def come_back(browser: Browser, answer: dict[str, str]) -> PageAnswer:
    return browser.get(f"/mounts/callback?{urlencode(answer)}")


@pytest.fixture
def far() -> Iterator[FarSignIn]:
    with far_sign_in() as opened:
        yield opened


@pytest.fixture
def lines() -> tuple[str, ...]:
    return ()


@pytest.fixture
def scene(tmp_path: Path, far: FarSignIn, lines: tuple[str, ...]) -> Iterator[Scene]:
    table = url_mount(f"{far.origin}/mcp", "far", *AUTH, *(line.replace("ISSUER", far.origin) for line in lines))
    with open_scene(tmp_path, far, table, Scene) as opened:
        yield opened


@contextmanager
def open_scene(
    folder: Path, far: FarSignIn, table: str, kind: Callable[[Signed, FarSignIn], AnyScene]
) -> Iterator[AnyScene]:
    with signed_site(folder / "server", *write_config(folder, table)) as signed:
        yield kind(signed, far)


def test_a_person_connects_and_calls_and_ends_it(scene: Scene) -> None:
    assert "not connected" in scene.ada.browser().get("/").text
    assert scene.list_far(scene.ada) == {CONNECT}
    browser = scene.ada.browser()
    page = browser.get("/mounts/connect?name=far")
    host = urlsplit(scene.far.origin).netloc
    assert all(word in page.text for word in (host, "ada", "<code>read</code>", "Go there and sign in"))
    told = scene.connect(scene.ada)
    assert (told.status, "Connected" in told.text) == (200, True)
    scene.wait_listed(scene.ada)
    assert scene.call(scene.ada) == "ada-there"
    shown = browser.get("/").text
    assert "connected</b> since" in shown
    tokens = [*scene.far.access, *scene.far.refresh]
    assert not [token for token in tokens if token in shown]
    ended = browser.post("/", {"csrf": find_csrf(shown), "disconnect": "far"})
    assert (ended.status, "The connection was ended." in ended.text) == (200, True)
    assert eventually(lambda: scene.far.revoked == [next(iter(scene.far.refresh))])
    assert "SIGN_IN_REQUIRED" in scene.call(scene.ada)
    assert browser.post("/", {"csrf": find_csrf(shown), "disconnect": "far"}).status == 404


def test_a_call_without_a_connection_has_the_link(scene: Scene) -> None:
    scene.connect(scene.ada)
    scene.wait_listed(scene.ada)
    scene.far.end_access()
    scene.far.refresh.clear()
    text = scene.call(scene.ada)
    assert f"connect it again (it says invalid_grant) at {scene.url}/mounts/connect?name=far" in text, text
    assert "far__whoami" in scene.list_far(scene.ada)
    assert "ended</b> it says invalid_grant" in scene.ada.browser().get("/").text
    scene.connect(scene.ada)
    assert scene.call(scene.ada) == "ada-there"


def test_two_people_never_use_one_connection(scene: Scene) -> None:
    scene.connect(scene.ada)
    scene.wait_listed(scene.ada)
    assert scene.list_far(scene.bob) == {CONNECT}
    scene.connect(scene.bob, "bob-there")
    scene.wait_listed(scene.bob)
    for _ in range(3):
        assert (scene.call(scene.ada), scene.call(scene.bob)) == ("ada-there", "bob-there")
        assert "far__of_ada_there" in scene.list_far(scene.ada) - scene.list_far(scene.bob)
    inbound = [scene.ada.token, scene.bob.token]
    assert scene.far.seen and not [token for token in inbound if any(token in seen for seen in scene.far.seen)]
    for token in (*scene.far.access, *scene.far.refresh):
        assert find_files_with(scene.state, token) == [] and token not in scene.signed.site.log()


def test_calls_at_the_end_of_a_token_refresh_it_once(scene: Scene) -> None:
    scene.far.lifetime = 5  # it is refreshed a second before its end
    scene.connect(scene.ada)
    scene.wait_listed(scene.ada)
    scene.far.lifetime, scene.far.refresh_takes = 3600, 0.5
    time.sleep(4.2)
    before = scene.far.refreshes
    with ThreadPoolExecutor(20) as threads:
        people = [AppUser.__new__(AppUser) for _ in range(20)]
        for number, each in enumerate(people):
            each.__dict__.update(scene.ada.__dict__, _last_id=1_000 * (number + 1))
        said = list(threads.map(scene.call, people))
    assert said == ["ada-there"] * 20
    assert (scene.far.refreshes - before, scene.far.reused) == (1, 0)


def test_a_token_that_its_server_ended_early_is_refreshed(scene: Scene) -> None:
    scene.connect(scene.ada)
    scene.wait_listed(scene.ada)
    for _ in range(3):
        scene.far.end_access()
        assert scene.call(scene.ada) == "ada-there"
    assert (scene.far.refreshes, scene.far.reused) == (3, 0)


def test_an_answer_without_a_refresh_token_keeps_the_old_one(scene: Scene) -> None:
    scene.far.rotates = False
    scene.connect(scene.ada)
    scene.wait_listed(scene.ada)
    for _ in range(2):
        scene.far.end_access()
        assert scene.call(scene.ada) == "ada-there"
    assert scene.far.refreshes == 2


def test_a_refresh_whose_answer_never_came_is_not_sent_again(scene: Scene) -> None:
    scene.connect(scene.ada)
    scene.wait_listed(scene.ada)
    scene.far.end_access()
    scene.far.answers = ["break"]
    text = scene.call(scene.ada)
    assert "what became of its last refresh is not known" in text and "connect it again" in text, text
    assert "what became of its last refresh is not known" in scene.call(scene.ada)
    assert scene.far.refreshes == 0
    scene.connect(scene.ada)
    assert scene.call(scene.ada) == "ada-there"


@pytest.mark.parametrize("lines", [("refresh_retry = true",)])
def test_a_server_that_takes_a_second_try_gets_one(scene: Scene) -> None:
    scene.connect(scene.ada)
    scene.wait_listed(scene.ada)
    scene.far.end_access()
    scene.far.answers = ["break"]
    assert scene.call(scene.ada) == "ada-there"


@pytest.mark.parametrize("lines", [(), ("refresh_retry = true",)])
def test_a_mark_that_a_killed_server_left_ends_the_connection(scene: Scene, lines: tuple[str, ...]) -> None:
    scene.connect(scene.ada)
    scene.wait_listed(scene.ada)
    scene.change("UPDATE mount_connection SET refreshing_since = 1, expires_at = 1")
    scene.far.end_access()
    text = scene.call(scene.ada)
    assert text == "ada-there" if lines else "what became of its last refresh is not known" in text, text


def test_a_busy_token_endpoint_ends_nothing(scene: Scene) -> None:
    scene.far.lifetime = 7  # it is refreshed a second and a half before its end
    scene.connect(scene.ada)
    scene.wait_listed(scene.ada)
    scene.far.answers = [(503, {})] * 3
    assert eventually(lambda: len(scene.far.answers) < 3 or scene.call(scene.ada) != "ada-there")
    assert scene.call(scene.ada) == "ada-there"  # the token that is there still holds
    scene.far.answers = [(429, {"error": "slow_down"})] * 2
    scene.far.end_access()
    assert "its token can't be refreshed now: it is busy" in scene.call(scene.ada)
    assert scene.call(scene.ada) == "ada-there"


def test_a_server_that_gives_a_rejected_token_again_is_asked_once(scene: Scene) -> None:
    scene.connect(scene.ada)
    scene.wait_listed(scene.ada)
    scene.far.repeats = True
    scene.far.end_access()
    for _ in range(2):
        assert "CONNECT_FAILED: it rejects the token that it gave: try again in 30 s" in scene.call(scene.ada)
    assert scene.far.refreshes == 1


@pytest.mark.parametrize("refreshable", [True, False])
def test_an_outage_that_rejects_each_token_ends_no_connection(scene: Scene, refreshable: bool) -> None:
    scene.far.refreshable = refreshable
    scene.connect(scene.ada)
    scene.wait_listed(scene.ada)
    scene.far.takes_tokens = False
    for _ in range(3):
        assert "CONNECT_FAILED: it rejects the token that it gave" in scene.call(scene.ada)
    assert scene.far.refreshes == (1 if refreshable else 0)
    scene.far.takes_tokens = True
    assert scene.call(scene.ada) == "ada-there"
    assert "connected</b> since" in scene.ada.browser().get("/").text


def test_a_token_that_a_server_repeats_is_hidden(scene: Scene) -> None:
    scene.connect(scene.ada)
    scene.wait_listed(scene.ada)
    scene.far.echoes = True
    assert "debug: Bearer …" in scene.call(scene.ada)


def test_no_pin_and_no_log_has_a_token_that_a_server_lists(scene: Scene) -> None:
    scene.far.echoes = True
    scene.connect(scene.ada)
    scene.wait_listed(scene.ada)
    assert eventually(lambda: "whoami" in list_pins(scene.state))
    assert f"far__{scene.far.last}" not in scene.list_far(scene.ada)
    assert find_files_with(scene.state, scene.far.last) == []
    assert scene.far.last not in scene.signed.site.log()


def list_pins(state: Path) -> list[str]:
    """Return the names of what is pinned."""
    with closing(sqlite3.connect(state / "state.db")) as database:
        return [name for (name,) in database.execute("SELECT name FROM mount_pin")]


def test_one_who_ends_a_connection_during_a_refresh_leaves_no_token(scene: Scene) -> None:
    scene.connect(scene.ada)
    scene.wait_listed(scene.ada)
    scene.far.end_access()
    scene.far.refresh_takes = 2.0
    browser = scene.ada.browser()
    token = find_csrf(browser.get("/").text)
    with ThreadPoolExecutor(1) as threads:
        calling = threads.submit(scene.call, scene.ada)
        assert eventually(lambda: scene.far.refreshes == 1)
        assert browser.post("/", {"csrf": token, "disconnect": "far"}).status == 200
        assert "ada-there" not in calling.result()
    assert eventually(lambda: set(scene.far.refresh) <= set(scene.far.revoked))


def test_a_client_that_its_server_forgot_is_registered_again(scene: Scene) -> None:
    scene.connect(scene.ada)
    scene.far.answers = [(401, {"error": "invalid_client"})]
    scene.connect(scene.bob, "bob-there")
    assert len(scene.far.registered) == 2
    scene.wait_listed(scene.bob)


def test_a_state_is_one_persons_and_counts_once(scene: Scene) -> None:
    mine, theirs = scene.ada.browser(), scene.bob.browser()
    answer = scene.visit(scene.leave(mine).location)
    other = come_back(theirs, answer)
    assert (other.status, read_code(other)) == (400, "SIGN_IN_OVER")
    assert come_back(mine, answer).status == 200
    for used in (answer, {**answer, "state": "x"}, {"state": answer["state"]}, {}):
        again = come_back(mine, used)
        assert (again.status, "begin again" in again.text, read_code(again)) == (400, True, "SIGN_IN_OVER")
    stranger = Browser(urlsplit(scene.url).port or 0, {"accept": "text/html"})
    for path in ("/mounts/connect?name=far", f"/mounts/callback?{urlencode(answer)}"):
        assert stranger.get(path).location == "/login"
    assert scene.list_far(scene.bob) == {CONNECT}


def test_a_stranger_comes_to_the_page_that_they_asked_for(scene: Scene) -> None:
    page = "/mounts/connect?name=far"
    browser = Browser(urlsplit(scene.url).port or 0, {"accept": "text/html"})
    assert browser.get(page).location == "/login"
    assert browser.sign_in(name="ada").location == page
    assert browser.get("/login").location == "/"


def test_a_stranger_comes_to_no_page_of_others(scene: Scene) -> None:
    """Another site below the same name may set cookies."""
    for asked in (
        "//evil.example",
        "https://evil.example",
        "/\\evil.example",
        "mounts/../x",
        "a\r\nb: c",
        "é",
        "",
        "@",
    ):
        browser = Browser(urlsplit(scene.url).port or 0, {"accept": "text/html"})
        browser.get("/mounts/tools?name=far")
        (name,) = (name for name in browser.cookies if name.endswith("onward"))
        browser.cookies[name] = base64.urlsafe_b64encode(asked.encode()).decode().rstrip("=")
        assert browser.sign_in(name="ada").location == "/", asked


@pytest.mark.parametrize("iss", ["http://evil.example", None])
def test_an_answer_from_elsewhere_is_refused(scene: Scene, iss: str | None) -> None:
    scene.far.iss = iss
    told = scene.connect(scene.ada)
    assert told.status == 502 and "did not come from where you were sent" in told.text
    assert read_code(told) == "SIGN_IN_MIXED_UP"
    assert not scene.far.access


def test_a_refusal_there_is_said_with_its_code_and_leads_back(scene: Scene) -> None:
    again = '<a class="button" href="/mounts/connect?name=far">Try again</a>'
    for error in ("access_denied", "server_error", "<b>bold</b>"):
        browser = scene.ada.browser()
        answer = scene.visit(scene.leave(browser).location)
        del answer["code"]
        told = come_back(browser, {**answer, "error": error})
        assert (told.status, read_code(told)) == (502, "SIGN_IN_REFUSED"), error
        assert "<b>bold" not in told.text and again in told.text, error
    assert scene.connect(scene.ada).status == 200


def test_a_state_that_is_older_than_ten_minutes_is_over(scene: Scene) -> None:
    browser = scene.ada.browser()
    answer = scene.visit(scene.leave(browser).location)
    scene.change("UPDATE mount_departure SET until = until - 600")
    told = come_back(browser, answer)
    assert (told.status, read_code(told)) == (400, "SIGN_IN_OVER")


def test_who_opens_too_many_pages_at_once_is_told_to_wait(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent, ThreadPoolExecutor(5) as threads:
        table = url_mount(f"http://127.0.0.1:{silent.getsockname()[1]}/mcp", "far", *AUTH)
        with signed_site(tmp_path / "server", *write_config(tmp_path, table)) as signed:
            ada = AppUser(signed, "ada", "Fern", is_connected=False)
            browsers = [ada.browser() for _ in range(5)]  # two may ask, and two wait
            asking = [threads.submit(browser.get, "/mounts/connect?name=far") for browser in browsers]
            told = next(as_completed(asking)).result()
            assert (told.status, read_code(told)) == (503, "SIGN_IN_BUSY")
            silent.shutdown(socket.SHUT_RDWR)  # which ends the others; closed, it would leave its port to anybody
            assert "DISCOVERY_FAILED" in {read_code(each.result()) for each in asking}


def test_a_form_of_another_page_or_person_leads_nowhere(scene: Scene) -> None:
    mine, theirs = scene.ada.browser(), scene.bob.browser()
    page = mine.get("/mounts/connect?name=far")
    fields = {name: page.field(name) for name in ("csrf", "name", "shown")}
    refused = theirs.post("/mounts/connect", fields)
    assert (refused.status, read_code(refused)) == (403, "SIGN_IN_OVER")
    assert mine.post("/mounts/connect", {**fields, "name": "other"}).status == 403
    assert mine.post("/mounts/connect", {**fields, "shown": "x"}).status == 403
    scene.far.metadata = {"authorization_endpoint": f"{scene.far.origin.replace('127.0.0.1', 'localhost')}/authorize"}
    assert mine.post("/mounts/connect", fields).location == "/mounts/connect?name=far"  # it says something else now
    unknown = mine.get("/mounts/connect?name=other")
    assert (unknown.status, read_code(unknown)) == (404, "NOT_MOUNTED")


ELSEWHERE: list[tuple[dict[str, Any], dict[str, Any], str]] = [
    (
        {"resource": "https://other.example/mcp"},
        {},
        "calls itself https://other.example/mcp: write that as url of [mounts.far], if you trust it",
    ),
    ({"resource": "http://127.0.0.1"}, {}, "calls itself http://127.0.0.1"),
    ({"authorization_servers": []}, {}, "names no authorization server"),
    ({"authorization_servers": ["http://10.0.0.1"]}, {}, "must be an https URL"),
    ({}, {"issuer": "https://other.example"}, "are of https://other.example"),
    ({}, {"code_challenge_methods_supported": ["plain"]}, "does not support PKCE"),
    ({}, {"authorization_endpoint": "javascript:alert(1)"}, "authorization_endpoint must be an https URL"),
    ({}, {"authorization_endpoint": "OURS"}, "sends people to this server itself"),
    ({}, {"registration_endpoint": None}, "registers no clients"),
    (
        {},
        {"authorization_endpoint": "http://127.0.0.1:1/a", "authorization_response_iss_parameter_supported": False},
        "which does not say who answers",
    ),
]


def test_documents_that_lead_elsewhere_are_refused(scene: Scene) -> None:
    for resource, metadata, told in ELSEWHERE:
        scene.far.resource = resource
        scene.far.metadata = {name: f"{scene.url}/x" if value == "OURS" else value for name, value in metadata.items()}
        begun = len(scene.signed.site.log())
        page = scene.leave(scene.ada.browser())
        assert page.status == 502 and told in page.text.replace("&#39;", "'"), page.text
        assert read_code(page) == ("CLIENT_REFUSED" if "registers" in told else "DISCOVERY_FAILED"), told
        assert read_code(page) in scene.signed.site.log()[begun:], told


@pytest.mark.parametrize("answer", [(200, b"<html>"), (200, b"x" * HUGE), (302, {}), (200, {"access_token": "a\nb"})])
def test_a_token_endpoint_that_answers_nonsense_connects_nothing(scene: Scene, answer: Any) -> None:
    scene.far.answers = [answer]
    told = scene.connect(scene.ada)
    assert told.status == 502 and "it gave no token" in told.text, told.text
    assert read_code(told) == "TOKEN_REFUSED"
    assert scene.list_far(scene.ada) == {CONNECT}


@pytest.mark.parametrize("lines", [(*OURS, 'audience = "ISSUER/"')])
def test_the_operators_client_shows_its_secret(scene: Scene) -> None:
    refused = scene.leave(scene.ada.browser())
    assert refused.status == 502 and "the secret FAR is not set" in refused.text
    assert read_code(refused) == "SECRET_MISSING"
    set_secret(scene.state, "FAR", "s3cret-of-the-client")
    scene.far.static = {"ours": "s3cret-of-the-client"}
    location = scene.leave(scene.ada.browser()).location
    assert "client_id=ours" in location and f"scope={quote('a')}+b" in location and "s3cret" not in location
    scene.connect(scene.ada)
    scene.wait_listed(scene.ada)
    assert scene.call(scene.ada) == "ada-there" and scene.far.registered == []
    assert find_files_with(scene.state, "s3cret-of-the-client") == []


@pytest.mark.parametrize("lines", [(*OURS, 'audience = "ISSUER"')])
@pytest.mark.parametrize(("methods", "is_in_form"), [([POST, BASIC], True), ([BASIC, POST], False), ([], False)])
def test_the_operators_client_shows_its_secret_as_the_server_prefers(
    scene: Scene, methods: list[str], is_in_form: bool
) -> None:
    set_secret(scene.state, "FAR", "s3cret")
    scene.far.static = {"ours": "s3cret"}
    scene.far.metadata = {"token_endpoint_auth_methods_supported": methods} if methods else {}
    assert scene.connect(scene.ada).status == 200
    assert any("client_secret=s3cret" in each for each in scene.far.seen) is is_in_form
    assert any(each.startswith("Basic ") for each in scene.far.seen) is not is_in_form


@pytest.mark.parametrize("lines", [(*OURS, 'audience = "https://auth.example"')])
def test_the_operators_client_is_shown_to_the_issuer_alone_that_its_table_names(scene: Scene) -> None:
    set_secret(scene.state, "FAR", "s3cret-of-the-client")
    refused = scene.ada.browser().get("/mounts/connect?name=far")
    told = f"its authorization server is {scene.far.origin}, and not the audience of its table"
    assert refused.status == 502 and told in refused.text


def count_connections(state: Path) -> int:
    """Return how many rows there are, with those of what is to be revoked."""
    with closing(sqlite3.connect(state / "state.db")) as database:
        return int(database.execute("SELECT count(*) FROM mount_connection").fetchone()[0])


def test_one_client_is_registered_for_all(scene: Scene) -> None:
    for who in (scene.ada, scene.bob):
        scene.connect(who)
    (client,) = scene.far.registered
    assert client["redirect_uris"] == [f"{scene.url}/mounts/callback"]
    document = json.loads(scene.ada.browser().get("/mounts/client.json").body)
    assert document["client_id"] == f"{scene.url}/mounts/client.json"


def test_it_goes_with_the_account(scene: Scene) -> None:
    scene.connect(scene.ada)
    words = [COMMAND, "user", "remove", "ada", "--state", str(scene.state)]
    assert forked_command.run(words, "", cwd=scene.state, env={"PATH": "/usr/bin:/bin"}).returncode == 0
    assert eventually(lambda: len(scene.far.revoked) == 1)
    assert eventually(lambda: count_connections(scene.state) == 0)
