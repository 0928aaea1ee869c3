"""`toolgate audit` and `audit verify` on the log that two servers write to one PostgreSQL."""

import json
import subprocess
import threading
import time
from pathlib import Path

from tests.clients.raw_client import COMMAND, PATIENCE
from tests.clients.round_robin import RoundRobin
from tests.server.cli.test_cli import run
from tests.servers.faulty_proxy import verdicts
from tests.servers.postgres import Postgres
from tests.servers.replicas import Replicas, running_replicas

SOON = 0.05  # seconds from an answer to its line in the database
SPARE = 1.0  # seconds more on a busy machine


def test_calls_at_two_servers_are_one_log_of_which_a_killed_one_loses_nothing_old(
    tmp_path: Path, postgres: Postgres
) -> None:
    with running_replicas(tmp_path, postgres, "--audit", "full") as replicas:
        words = ["--state", str(tmp_path / "operator"), *find_database(replicas)]
        client = RoundRobin(replicas.sites)
        client.ready()
        for number in range(20):
            client.call("echo", {"text": str(number)})
        time.sleep(SOON + SPARE)
        replicas.sites[0].process.kill()
        replicas.sites[0].process.wait()

        def show(*filters: str) -> list[str]:
            done = run(tmp_path, "audit", "--json", *filters, *words)
            assert done.returncode == 0, done.stderr
            return [entry["arguments"]["text"] for entry in map(json.loads, done.stdout.splitlines())]

        shown = show()
        assert sorted(map(int, shown)) == list(range(20))  # in the order of their times, which differ by milliseconds
        assert show("--last", "0", "--tool", "ec*") == shown and show("--last", "3") == shown[-3:]
        assert show("--principal", "nobody") == show("--until", "1d") == [] and show("--since", "1h") == shown
        lines = follow(tmp_path, words, lambda: client.call("echo", {"text": "seen"}, at=1), "seen")
        assert lines == [*shown, "seen"]
        assert b">echo<" in client.next(1).ask("GET", "/", accept="text/html")[1]
        verified = run(tmp_path, "audit", "verify", *words)
        assert verified.returncode == 0 and verified.stdout.startswith("intact: "), verified
        assert ", in 2 chains\n" in verified.stdout
        told = run(tmp_path, "audit", "verify", *words[:-2])  # without the secret
        assert told.returncode == 1 and "give the --secret" in told.stderr
        assert not list(tmp_path.glob("*/state/audit")) and not (tmp_path / "operator").exists()
        (tmp_path / "operator").mkdir()
        assert run(tmp_path, "backup", "moving", *words).returncode == 0
        assert run(tmp_path, "restore", "moving", "--state", str(tmp_path / "alone")).returncode == 0
        verified = run(tmp_path, "audit", "verify", "--state", str(tmp_path / "alone"))
        assert verified.returncode == 0 and ", in 2 chains\n" in verified.stdout, verified
        assert '"text": "seen"' in run(tmp_path, "audit", "--json", "--state", str(tmp_path / "alone")).stdout
        url = words[words.index("--database") + 1]
        name = url.split("/")[3].split("?")[0]
        postgres.run_sql("DELETE FROM audit_line WHERE convert_from(line, 'UTF8') LIKE '%\"seen\"%'", database=name)
        verified = run(tmp_path, "audit", "verify", *words)
        assert verified.returncode == 1 and "missing at the end: cut off" in verified.stdout
        done = run(tmp_path, "doctor", "--browser", "none", "-t", *words)
        assert "the record of calls is broken: chain " in done.stdout


def test_doctor_goes_on_where_neither_the_database_nor_its_secret_can_be_read(tmp_path: Path) -> None:
    words = ("--database", "postgresql://ada@127.0.0.1:1/there", "--secret", "nowhere")
    found = verdicts(run(tmp_path, "doctor", "--browser", "none", "-t", *words).stdout)
    assert (found["state database"], found["audit"], found["rules"]) == ("FAIL", "FAIL", "skip")


def find_database(replicas: Replicas) -> list[str]:
    """Return the options of the servers that name their database and its secret."""
    return ["--database", replicas.database, "--secret", str(replicas.secret)]


def follow(folder: Path, words: list[str], act: object, last: str) -> list[str]:
    """Return the texts that `audit --follow` prints up to the last one, which `act` calls."""
    environment = {"PATH": "/usr/bin:/bin", "HOME": str(folder)}
    command = [COMMAND, "audit", "--follow", "--json", *words]
    following = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment, cwd=folder)
    stuck = threading.Timer(PATIENCE, following.kill)
    stuck.start()
    found: list[str] = []
    try:
        assert following.stdout is not None and callable(act)
        for line in following.stdout:
            found.append(json.loads(line)["arguments"]["text"])
            if len(found) == 20:
                act()
            if found[-1] == last:
                return found
        return found
    finally:
        stuck.cancel()
        following.kill()
        following.communicate()
