"""Kill -9 of the replica that has the work: sessions go on, and nothing acknowledged is lost or doubled.

A client sees at most one error, and a call of 2025-11-25 ends within 5 seconds. `test_replicas.py` has a kill in a
stream and between `initialize` and `initialized`, `test_two_servers.py` with a task and with a callback due.
"""

import http.client
import time
import urllib.parse
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.clients.raw_client import eventually
from tests.clients.raw_http_client import Site
from tests.clients.round_robin import RoundRobin
from tests.clients.stateless_requests import call, text
from tests.folder_contents import has_content
from tests.server.auth.authorization_in_process import VERIFIER, challenge
from tests.server.auth.http_browser import Person
from tests.server.auth.minted_tokens import Signed
from tests.server.auth.sign_in_server import Browser
from tests.server.cli.commands.test_user_and_client import BACK, is_let_in, posted, registered
from tests.server.features.telemetry.test_metrics import told
from tests.servers.home_page_server import AppUser
from tests.servers.postgres import Postgres
from tests.servers.replicas import Replicas, running_replicas

WITHIN = 5.0  # seconds
FORMS: dict[str, object] = {"elicitation": {}}
ADA = {"action": "accept", "content": {"name": "Ada"}}


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory, postgres: Postgres) -> Iterator[Replicas]:
    folder = tmp_path_factory.mktemp("kills")
    with running_replicas(folder, postgres, "--auth", "oauth", "--approve", "Bash(echo run*)") as replicas:
        yield replicas


@pytest.fixture(scope="module")
def ada(servers: Replicas) -> AppUser:
    """A person with an account."""
    return AppUser(Signed(servers.sites[0], servers.public_url), "ada", "Fern")


@pytest.fixture
def pair(servers: Replicas) -> Iterator[Replicas]:
    """Two replicas, of which a test kills the first."""
    yield servers
    if servers.sites[0].process.poll() is not None:
        servers.restart(0)


def open_session(pair: Replicas, who: str, **how: Any) -> RoundRobin:
    client = RoundRobin(pair.sites, token=pair.token(who), **how)
    client.ready()
    return client


def kill_in(site: Site, request: Callable[[], object], has_begun: Callable[[], bool]) -> None:
    """Kill a server during a request, whose client has one error at once."""
    with ThreadPoolExecutor(1) as thread:
        asked = thread.submit(request)
        assert eventually(lambda: asked.done() or has_begun())
        assert not asked.done(), asked.result()
        site.kill()
        with pytest.raises((OSError, http.client.HTTPException)):
            asked.result(1)


def has_connections(site: Site, count: int) -> bool:
    return told(site)["toolgate_connections"][()] >= count


def answer(client: RoundRobin, question: Any, content: Any) -> None:
    """Answer a question to the client at the second server."""
    message = {"jsonrpc": "2.0", "id": question["id"], "result": content}
    assert client.sites[1].ask("POST", "/mcp", message, **client.headers)[0].status == 202


def test_before_the_answer_of_initialize(pair: Replicas) -> None:
    begin = partial(RoundRobin, pair.sites, token=pair.token("ida"))
    with pair.redis.stopped():  # the server waits to write the session
        kill_in(pair.sites[0], begin, lambda: has_connections(pair.sites[0], 2))
    client = begin(at=1)
    client.ready(at=1)
    assert client.call("echo", {"text": "at the first try"}, at=1) == "at the first try"


def test_in_a_call_under_a_second(pair: Replicas, tmp_path: Path) -> None:
    client, runs = open_session(pair, "uma"), tmp_path / "file.runs"
    job = {"name": "harmful_job", "arguments": {"file": str(tmp_path / "file")}}
    client.call("Bash", {"command": "mkdir -p here && cd here"}, at=0)
    kill_in(pair.sites[0], lambda: client.post("tools/call", job, at=0), lambda: has_content(runs))
    assert client.call("Bash", {"command": "basename $PWD"}, at=1).startswith("here\n")  # news may follow
    assert runs.read_text() == "run\n"


def test_with_a_reader_of_notifications(pair: Replicas) -> None:
    client = open_session(pair, "greta")
    reader = client.listen(at=0)
    reader.wait_open()
    assert "result" in client.post("resources/subscribe", {"uri": "task://list"}, at=0)[2]
    pair.sites[0].kill()
    client.call("touch", {"uri": "task://list"}, at=1)
    updated = client.listen(at=1).wait(lambda message: message.get("method") == "notifications/resources/updated")
    assert updated["params"]["uri"] == "task://list"


@pytest.mark.soak
def test_with_questions_at_the_client(pair: Replicas) -> None:
    client = open_session(pair, "quin", capabilities=FORMS)
    once, again = client.stream("ask", at=0, id="once"), client.stream("ask_name", at=0, id="again")
    questions = [each.wait(lambda message: message.get("method") == "elicitation/create") for each in (once, again)]
    pair.sites[0].kill()
    began = time.monotonic()
    answer(client, questions[1], ADA)
    error = client.listen(at=1, after=once.last_id()).answer(WITHIN)["error"]
    assert "may or may not have taken effect" in error["message"]
    asking = client.listen(at=1, after=again.last_id())
    repeated = asking.wait(lambda message: message.get("method") == "elicitation/create", WITHIN)
    assert repeated["id"] != questions[1]["id"]
    answer(client, repeated, ADA)
    assert asking.answer()["result"]["content"][0]["text"] == "Ada"
    assert time.monotonic() - began < WITHIN


def test_with_a_question_of_a_call_without_a_session(pair: Replicas) -> None:
    token = pair.token("ned")
    asked = call(pair.sites[0], token, "ask")
    for turn in range(2):
        (key,) = asked["inputRequests"]
        retry = {"requestState": asked["requestState"], "inputResponses": {key: ADA}}
        if turn == 0:
            pair.sites[0].kill()
        asked = call(pair.sites[1], token, "ask", **retry)
    assert text(asked).startswith("accept {'name': 'Ada'} accept {'name': 'Ada'}")


@pytest.mark.soak
def test_with_a_question_on_the_page(pair: Replicas, ada: AppUser, tmp_path: Path) -> None:
    client = RoundRobin(pair.sites, token=ada.token)
    client.ready()
    browser = Browser(pair.sites[1].port, {"accept": "text/html"})
    assert browser.sign_in().location == "/"
    commands = [{"command": f"echo run >> {tmp_path}/{name}; cat {tmp_path}/{name}"} for name in ("first", "second")]
    answered, open_question = commands
    assert "can answer at" in client.call("Bash", answered, at=0)
    allow(browser)
    assert "can answer at" in client.call("Bash", open_question, at=0)
    pair.sites[0].kill()
    began = time.monotonic()
    assert client.call("Bash", answered, at=1) == "run\n"  # what a person was told counts
    assert eventually(lambda: "Allow once" not in browser.get("/").text, WITHIN)
    assert "can answer at" in client.call("Bash", open_question, at=1)
    allow(browser)
    assert client.call("Bash", open_question, at=1) == "run\n"
    assert time.monotonic() - began < 2 * WITHIN
    assert "can answer at" in client.call("Bash", answered, at=1)  # it counted once


def allow(browser: Browser) -> None:
    """Allow the one call that a person is asked about."""
    page = browser.get("/").text.rpartition("<main>")[2]
    assert page.count("Allow once") == 1
    csrf, id = (page.split(f'name="{name}" value="', 1)[1].partition('"')[0] for name in ("csrf", "accept"))
    assert "You allowed this call." in browser.post("/", {"csrf": csrf, "accept": id}).text


def test_in_an_approvals_retry(pair: Replicas, tmp_path: Path) -> None:
    token, runs = pair.token("rex"), tmp_path / "runs"
    command = {"command": f"echo run >> {runs}; sleep $(( $(wc -l < {runs}) == 1 ? 20 : 0 ))"}

    def retry(asked: Any) -> dict[str, Any]:
        (key,) = asked["inputRequests"]
        return {"requestState": asked["requestState"], "inputResponses": {key: {"action": "accept", "content": {}}}}

    given = retry(call(pair.sites[0], token, "Bash", command))
    kill_in(pair.sites[0], lambda: call(pair.sites[0], token, "Bash", command, **given), lambda: has_content(runs))
    asked = call(pair.sites[1], token, "Bash", command, **given)
    assert asked["resultType"] == "input_required"  # the approval was used
    assert runs.read_text() == "run\n"
    call(pair.sites[1], token, "Bash", command, **retry(asked))
    assert runs.read_text() == "run\nrun\n"


@pytest.mark.brief("refresh")
@pytest.mark.parametrize("kind", ["code", "refresh"])
def test_in_an_exchange(pair: Replicas, ada: AppUser, postgres: Postgres, kind: str) -> None:
    first, second = pair.sites
    client = registered(second)
    form = {"grant_type": "authorization_code", "code": approve(second, client), "redirect_uri": BACK}
    form |= {"client_id": client, "code_verifier": VERIFIER}
    if kind == "refresh":
        status, tokens = posted(first, "/token", form)
        assert status == 200
        form = {"grant_type": "refresh_token", "client_id": client, "refresh_token": tokens["refresh_token"]}
    with postgres.blocking("oauth_access", pair.database) as waits:  # after it has marked the code or token as used
        kill_in(first, lambda: posted(first, "/token", form), waits)
    began = time.monotonic()
    status, tokens = posted(second, "/token", form)
    assert status == 200 and is_let_in(second, tokens["access_token"])
    assert time.monotonic() - began < WITHIN
    form = {"grant_type": "refresh_token", "client_id": client, "refresh_token": tokens["refresh_token"]}
    assert posted(second, "/token", form)[0] == 200


def approve(site: Site, client: str) -> str:
    """Return a code that ada approved."""
    query = {"client_id": client, "redirect_uri": BACK, "response_type": "code", "code_challenge_method": "S256"}
    words = urllib.parse.urlencode({**query, "code_challenge": challenge()})
    return Person(site).answer(f"{site.url}/authorize?{words}")["code"]


def test_while_it_holds_a_lock(pair: Replicas, postgres: Postgres) -> None:
    client = open_session(pair, "lena")

    def set_callback(message: str, at: int) -> str:
        arguments = {"action": "set", "message": message, "delay_seconds": 600, "repeat_count": 1}
        return client.call("SetCallback", arguments, at=at)

    with ThreadPoolExecutor(1) as thread:
        with postgres.blocking("callback", pair.database) as waits:
            kill_in(pair.sites[0], lambda: set_callback("lost", at=0), waits)
            setting = thread.submit(set_callback, "kept", at=1)
        assert "Callback scheduled" in setting.result(WITHIN)
    listed = client.call("SetCallback", {"action": "list"}, at=1)
    assert "kept" in listed and "lost" not in listed
