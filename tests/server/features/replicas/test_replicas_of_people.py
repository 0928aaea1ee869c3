"""Two servers that share the sessions of people who sign in."""

import re
import subprocess
import urllib.parse
from collections.abc import Iterator

import pytest

from tests.clients.raw_client import eventually
from tests.clients.round_robin import RoundRobin
from tests.clients.stateless_requests import ask, call
from tests.server.cli.commands.test_user_and_client import PASSWORD, granted, registered
from tests.server.cli.test_cli import run
from tests.servers.postgres import Postgres
from tests.servers.replicas import Replicas, running_replicas


@pytest.fixture(scope="module")
def replicas(tmp_path_factory: pytest.TempPathFactory, postgres: Postgres) -> Iterator[Replicas]:
    folder = tmp_path_factory.mktemp("people")
    with running_replicas(folder, postgres, "--auth", "oauth") as servers:
        assert manage(servers, "user", "add", "ada", stdin=PASSWORD).returncode == 0
        yield servers


def manage(replicas: Replicas, *words: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
    """Run a command on the database of the servers."""
    state = replicas.sites[0].state
    return run(state.parent, *words, "--state", str(state), "--database", replicas.database, stdin=stdin)


def test_a_session_is_its_owners_at_every_replica(replicas: Replicas) -> None:
    first, second = replicas.sites
    token, other = (granted(site, registered(site))["access_token"] for site in (first, second))
    client = RoundRobin(replicas.sites, token=token)
    client.ready()
    assert [client.call("echo", {"text": "mine"}) for _ in range(4)] == ["mine"] * 4
    ping = {"jsonrpc": "2.0", "id": 1, "method": "ping"}
    for site in replicas.sites:
        headers = {**client.headers, "Authorization": f"Bearer {other}"}
        assert site.ask("POST", "/mcp", ping, **headers)[0].status == 404
    assert client.call("echo", {"text": "still"}) == "still"


def test_guesses_at_a_clients_secret_count_at_both(replicas: Replicas) -> None:
    made = manage(replicas, "client", "add", "Batch", "https://app.example/back", "--confidential")
    id, secret = re.findall(r"(?:id|secret):?\s+(\S+)", made.stdout)

    def ask(number: int, guess: str) -> int:
        form = urllib.parse.urlencode({"token": "x", "client_id": id, "client_secret": guess})
        site = replicas.sites[number % 2]
        kind = "application/x-www-form-urlencoded"
        return site.ask("POST", "/introspect", form.encode(), content_type=kind)[0].status

    assert ask(0, secret) == ask(1, secret) == 200
    replicas.redis.run("DEL", *keys(replicas, "*origin*"))  # else an address with a right guess counts for itself
    statuses = [ask(number, "wrong") for number in range(30)]
    assert statuses[:20] == [401] * 20 and 429 in statuses[20:]


def keys(replicas: Replicas, pattern: str) -> list[str]:
    return replicas.redis.run("KEYS", pattern).decode().split("\r\n")[2::2]


def test_a_revoked_grant_ends_the_session_and_its_work_everywhere(replicas: Replicas) -> None:
    token = granted(replicas.sites[0], registered(replicas.sites[0]))["access_token"]
    client = RoundRobin(replicas.sites, token=token)
    client.ready()
    readers = [client.stream("wait", {"seconds": 60}, at=at, id=f"at {at}") for at in (0, 1)]
    for reader in readers:
        reader.wait(lambda message: message.get("method") == "notifications/progress")
    assert manage(replicas, "token", "revoke", "user", "ada").returncode == 0
    assert eventually(lambda: all(reader.has_ended for reader in readers))
    assert eventually(lambda: [client.post("ping", at=at)[0].status for at in (0, 1)] == [401, 401])
    assert b"session:" not in replicas.redis.run("KEYS", f"*session:{client.key}*")


def test_files_are_listed_at_a_replica_that_has_had_no_call_of_the_person(replicas: Replicas) -> None:
    token = replicas.token("kim")
    first, second = replicas.sites
    call(first, token, "Bash", {"command": "echo tea > listed.txt"})
    listed = ask(second, token, "resources/list")["resources"]
    assert [each["name"] for each in listed if each["uri"].startswith("file:")] == ["listed.txt"]
