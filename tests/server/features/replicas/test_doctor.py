"""`toolgate doctor` about what several servers share, with real engines, each of them with one fault at a time."""

import asyncio
import os
import re
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.server.cli.test_cli import run
from tests.server.features.nodes.nodes import NodeProcess, running_node
from tests.servers.faulty_proxy import verdicts
from tests.servers.postgres import PASSWORD, Postgres
from tests.servers.redis_server import RedisProcess, redis_server
from tests.servers.reserved_port import kept_port
from toolgate.server.cli.doctor import main
from toolgate.server.cli.doctor.clocks import compare_clocks
from toolgate.server.cli.doctor.report import CheckError, CheckNote, run_checks
from toolgate.server.config import load
from toolgate.server.features.postgres import database_check as postgres
from toolgate.server.features.postgres.database.description import DatabaseDescription
from toolgate.server.features.postgres.database_url import parse_database_url
from toolgate.server.features.postgres.key_table import KeyTable
from toolgate.server.features.postgres.open_store import open_store
from toolgate.server.features.postgres.secret_file import read_secret
from toolgate.server.features.replicas import doctor as replicas
from toolgate.server.features.replicas.redis import description
from toolgate.server.features.replicas.redis.description import RedisDescription
from toolgate.server.features.replicas.redis_url import parse_redis_url
from toolgate.server.state import tables

QUIET = ("doctor", "--registration", "dynamic", "-t", "--auth", "none", "--port", "0")
REDIS_PASSWORD = "sup3r-secret"
MIB = 2**20
REDIS = [  # settings, verdict, what it says
    ("maxmemory 64mb, maxmemory-policy allkeys-lru", "FAIL", "it evicts keys when its memory is full"),
    ("maxmemory-policy volatile-ttl", "note", "it would evict keys with a maxmemory"),
    ("maxmemory 1", "FAIL", "refuses a command: OOM"),
    ("save 60 1", "note", "it writes its data to disk"),
    ("appendonly yes", "note", "it writes its data to disk"),
    ("replica-read-only yes, replicaof", "FAIL", "it is a copy, which can't be written"),
    ("", "ok", "answers in"),
]


@pytest.fixture(scope="module")
def redis() -> Iterator[RedisProcess]:
    with redis_server() as server:
        yield server


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcess]:
    with running_node(tmp_path_factory.mktemp("node"), "--sandbox", "none") as node:
        yield node


@pytest.fixture(scope="module")
def database(postgres: Postgres) -> str:
    """Return the URL of a database with the tables of this version."""
    url = postgres.create_database()
    asyncio.run(prepare(url))
    return url


async def prepare(url: str, secret: bytes | None = None) -> None:
    """Make the tables, and with a secret the keys."""
    store = open_store(Path("/nowhere"), parse_database_url(url))
    await store.prepare()
    if secret is not None:
        await KeyTable(store, secret).load()
    await store.aclose()


def check(capsys: pytest.CaptureFixture[str], row: str, **options: Any) -> str:
    """Return what one check of a server with these options prints."""
    config = load.load({"http": "true", **options}, {})
    checks = main.machine_checks(config)
    asyncio.run(run_checks([(name, look, ()) for name, look, _ in checks if name == row]))
    return capsys.readouterr().out


def test_a_whole_stack_is_found_well_before_and_after_its_first_start(
    tmp_path: Path, postgres: Postgres, node: NodeProcess
) -> None:
    with redis_server("--requirepass", REDIS_PASSWORD) as redis:
        url = postgres.to_tcp(postgres.create_database())
        for name, text in (("database", url), ("redis", redis.url.replace("//", f"//:{REDIS_PASSWORD}@"))):
            (tmp_path / name).write_text(text)
        (tmp_path / "secret").write_bytes(os.urandom(32))
        for name in ("database", "redis", "secret"):
            (tmp_path / name).chmod(0o600)
        words = ["--database", f"file:{tmp_path}/database", "--redis", f"file:{tmp_path}/redis"]
        words += ("--secret", f"{tmp_path}/secret", "--node", f"unix:{node.socket}", "--accept-unsandboxed")
        told = run(tmp_path, *QUIET, *words).stdout
        found = verdicts(told)
        assert [found[name] for name in ("options", "state database", "Redis", "other clocks")] == ["ok"] * 4, told
        assert found["secret"] == found["signing key"] == "skip", told
        assert "the first start makes the tables; room for 5 servers with 10 connections each" in told
        assert "noeviction; answers in" in told and "; 0 servers" in told
        assert f"PostgreSQL, Redis, the node at unix:{node.socket}: within a second" in told
        config = load.load({"database": f"file:{tmp_path}/database", "secret": f"{tmp_path}/secret"}, {})
        asyncio.run(prepare(url, read_secret(config)))
        told += (again := run(tmp_path, *QUIET, *words).stdout)
        assert verdicts(again)["secret"] == "ok" and "it opens 7 keys" in again, again
        (tmp_path / "secret").write_bytes(os.urandom(32))
        told += (again := run(tmp_path, *QUIET, *words).stdout)
        assert verdicts(again)["secret"] == "FAIL" and "sealed with another secret" in again, again
        assert "signing key" not in verdicts(again)
        for password in (REDIS_PASSWORD, PASSWORD, PASSWORD.replace("@", "%40")):
            assert password not in told


# -- Redis


@pytest.mark.parametrize(("words", "verdict", "said"), REDIS)
def test_a_redis_that_is_set_wrong_is_named(
    redis: RedisProcess, capsys: pytest.CaptureFixture[str], words: str, verdict: str, said: str
) -> None:
    sound = {"maxmemory": "0", "maxmemory-policy": "noeviction", "save": "", "appendonly": "no"}
    settings = dict(each.split(" ", 1) for each in words.split(", ") if " " in each)
    for name, value in settings.items():
        redis.run("CONFIG", "SET", name, value)
    if "replicaof" in words:
        redis.run("REPLICAOF", "127.0.0.1", "1")
    try:
        told = check(capsys, "Redis", redis=redis.url)
    finally:
        redis.run("REPLICAOF", "NO", "ONE")
        for name, value in sound.items():
            redis.run("CONFIG", "SET", name, value)
    assert told.startswith(f"{verdict:4}  Redis") and said in told, told
    assert b"doctor" not in redis.run("KEYS", "*")


def test_a_redis_that_is_not_reached_or_refuses_is_named(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(description, "TIMEOUT", 0.5)
    with redis_server("--requirepass", REDIS_PASSWORD) as server:
        wrong = check(capsys, "Redis", redis=server.url.replace("//", "//:wr0ng@"))
        assert "refuses the user or the password" in wrong and "wr0ng" not in wrong
        own = server.url.replace("//", f"//:{REDIS_PASSWORD}@")
        with server.stopped():
            assert "does not answer within 0.5 s" in check(capsys, "Redis", redis=own)
            assert "none of the others answers" in check(capsys, "other clocks", redis=own)
    told = check(capsys, "Redis", redis=own)
    assert "can't be reached: connection refused" in told and "correct --redis" in told
    with redis_server("--cluster-enabled", "yes", "--cluster-port", str(kept_port())) as server:
        assert "it is a cluster" in check(capsys, "Redis", redis=server.url)
    with redis_server() as server:
        server.run("ACL", "SETUSER", "small", "on", ">p", "~*", "&*", "+@all", "-eval")
        told = check(capsys, "Redis", redis=server.url.replace("//", "//small:p@"))
        assert "refuses a command: NOPERM" in told and "allow its user all commands" in told


SOUND_REDIS = RedisDescription("Redis", "7.0.15", "noeviction", MIB, 0, None, False, False, "", 3, 0.0005)
SOUND_POSTGRES = DatabaseDescription("15.4", 15, False, tables.VERSION, 100, 0)


@pytest.mark.parametrize(
    ("url", "how", "kind", "said"),
    [
        ("rediss://r.example", {}, str, "Redis 7.0.15 at r.example:6379; uses 1.0 MiB, noeviction; answers in 0.5 ms"),
        ("redis://r.example", {}, CheckNote, "in the clear"),
        ("redis://[::1]", {"product": "Valkey", "version": "8.1"}, str, "Valkey 8.1"),
        ("unix:///s", {"latency": 0.02}, CheckNote, "it is slow"),
        ("unix:///s", {"most_memory": MIB + 1}, CheckNote, "its memory is nearly full"),
        ("unix:///s", {"version": "6.0.16"}, CheckError, "older than 6.2"),
        ("unix:///s", {"version": "6.2.0"}, str, "6.2.0"),
        ("unix:///s", {"version": "", "policy": ""}, str, "3 servers of this database"),
        ("unix:///s", {"deployment": "a1"}, str, "3 servers of this database, deployment a1"),
        ("unix:///s", {"others": {"b2": 2}}, CheckNote, "others use it, too: 2 servers of deployment b2"),
        ("unix:///s", {"others": {"": 1}}, CheckNote, "others use it, too: 1 server of an earlier release"),
    ],
)
def test_what_a_redis_says_decides(url: str, how: dict[str, Any], kind: type, said: str) -> None:
    judge(partial(replicas.judge_redis, parse_redis_url(url), msgspec.structs.replace(SOUND_REDIS, **how)), kind, said)


def judge(work: Any, kind: type, said: str) -> None:
    try:
        found = work()
    except CheckError as error:
        found = error
    text = found.finding if isinstance(found, CheckNote) else str(found)
    assert (type(found), said in text) == (kind, True), text


# -- PostgreSQL


def test_a_database_that_can_not_be_used_is_named(
    postgres: Postgres, database: str, capsys: pytest.CaptureFixture[str]
) -> None:
    def look(url: str) -> str:
        return check(capsys, "state database", database=url)

    wrong = look(postgres.to_tcp(database, "wr0ng"))
    assert "refuses the user or the password" in wrong and "wr0ng" not in wrong
    assert "verify-full needs sslrootcert=FILE" in look(f"{postgres.to_tcp(database)}?sslmode=verify-full")
    assert "does not exist" in look(database.replace("/toolgate_", "/nothing_"))
    postgres.run_sql(
        "CREATE ROLE small LOGIN CONNECTION LIMIT 5", "GRANT SELECT ON schema_version TO small", database=name(database)
    )
    told = look(database.replace("operator", "small"))
    assert "FAIL" in told and "the servers may have 5 connections, and one takes 10" in told
    postgres.stop()
    try:
        assert "can't be reached" in look(database) and "none of the others" in check(
            capsys, "other clocks", database=database
        )
    finally:
        postgres.start()
    assert look(database).startswith("ok ")


def name(url: str) -> str:
    return url.partition("?")[0].rpartition("/")[2]


@pytest.mark.parametrize(
    ("version", "since", "verdict", "said"),
    [
        (tables.OLDEST - 1, 1, "FAIL", f"upgrades versions from {tables.OLDEST} on"),
        (tables.OLDEST, 1, "ok", "make a backup first; room"),
        (tables.VERSION + 1, tables.VERSION, "ok", "newer than this program's"),
        (tables.VERSION + 1, tables.VERSION + 1, "FAIL", "was made by a newer Toolgate"),
    ],
)
def test_tables_of_another_version_are_named(
    postgres: Postgres,
    database: str,
    capsys: pytest.CaptureFixture[str],
    version: int,
    since: int,
    verdict: str,
    said: str,
) -> None:
    def store(version: int, since: int) -> None:
        change = f"UPDATE schema_version SET version = {version}, compatible_since = {since}"
        postgres.run_sql(change, database=name(database))

    store(version, since)
    try:
        told = check(capsys, "state database", database=database)
    finally:
        store(tables.VERSION, tables.COMPATIBLE_SINCE)
    assert told.startswith(f"{verdict:4}  state database") and said in told, told


@pytest.mark.parametrize(
    ("url", "how", "kind", "said"),
    [
        ("db.example", {}, CheckNote, "in the clear"),
        ("db.example", {"is_encrypted": True}, CheckNote, "is not verified"),
        ("db.example/d?sslmode=verify-full", {"is_encrypted": True}, str, "room for 10 servers"),
        ("localhost", {"tables": tables.COMPATIBLE_SINCE - 1}, str, "servers of that version end then"),
        ("localhost", {"servers": 9}, str, "and 9 run"),
        ("localhost", {"servers": 10}, CheckNote, "no room for one more server"),
        ("localhost", {"connections": 9}, CheckError, "one takes 10"),
        ("localhost", {"version": "14.3", "major": 14}, CheckNote, "older than 15"),
        ("/d?host=/run/postgresql", {"version": "18beta1"}, str, "PostgreSQL 18beta1"),
    ],
)
def test_what_a_postgresql_says_decides(url: str, how: dict[str, Any], kind: type, said: str) -> None:
    parsed = parse_database_url(f"postgresql://{url if url.startswith(('/', 'db.example/')) else f'u:p@{url}/d'}")
    judge(partial(postgres.judge_database, parsed, msgspec.structs.replace(SOUND_POSTGRES, **how)), kind, said)


def test_a_database_with_sealed_keys_asks_for_the_secret(
    postgres: Postgres, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    url = postgres.create_database()
    asyncio.run(prepare(url))
    assert "without --secret, the keys are in the state folder" in check(capsys, "secret", database=url)
    told = check(capsys, "secret", database=url, redis="unix:///none")
    assert told.startswith("note") and "a token of one is refused by the others" in told
    asyncio.run(prepare(url, bytes(32)))
    assert "are sealed: give the --secret" in check(capsys, "secret", database=url)
    (tmp_path / "short").write_bytes(b"x")
    (tmp_path / "short").chmod(0o600)
    told = check(capsys, "secret", database=url, secret=str(tmp_path / "short"))
    assert told.startswith("FAIL") and "at least 32 random bytes" in told


# -- clocks


@pytest.mark.parametrize(("off", "told"), [(-300, "ahead of"), (300, "behind"), (0.5, "")])
def test_a_clock_that_is_off_is_named_with_by_how_much(
    redis: RedisProcess, node: NodeProcess, database: str, off: float, told: str
) -> None:
    options = {"http": "true", "database": database, "redis": redis.unix_url, "node": [f"unix:{node.socket}"]}
    parts = main.list_parts(load.load(options, {}))
    clocks = {name: reading for part in parts for name, reading in part.clocks.items()}
    finding = asyncio.run(compare_clocks(clocks, lambda: time.time() + off))
    if not told:
        assert isinstance(finding, str)
        return
    assert isinstance(finding, CheckNote)
    for whose in ("PostgreSQL", "Redis", f"the node at unix:{node.socket}"):
        named = re.search(rf"{re.escape(whose)} is ([0-9.]+) s {told} this machine", finding.finding)
        assert named is not None and abs(off) - 10 < float(named[1]) <= abs(off), finding  # less what reading it took


@pytest.mark.parametrize(
    ("off", "told"),
    [(1.0, ""), (-1.0, ""), (1.5, "far is 1.5 s ahead of this machine"), (-1.5, "far is 1.5 s behind this machine")],
)
def test_clocks_may_differ_by_a_second(off: float, told: str) -> None:
    async def read(_now: Any) -> tuple[float, float, float]:
        return 1_000.0, 1_000.0 + off, 1_000.0

    finding = asyncio.run(compare_clocks({"far": read}))
    assert (finding.finding if isinstance(finding, CheckNote) else "") == told


def test_what_reading_a_clock_takes_is_no_difference() -> None:
    async def read(_now: Any) -> tuple[float, float, float]:
        return 1_000.0, 1_004.0, 1_009.0

    assert asyncio.run(compare_clocks({"far": read})) == "far: within a second of this machine's"
