"""Write the fixture of the present schema, with rows in every table, by running today's code. A new version of the
tables puts the fixture that this writes in place of the last one, and leaves that of the oldest version unchanged:

    python -m tests.server.state.fixture > tests/server/state/fixtures/20.sql
"""

import asyncio
import contextlib
import sqlite3
import sys
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Any

from toolgate.server.auth.login.accounts import Accounts
from toolgate.server.auth.tokens.signing_keys import SigningKeys
from toolgate.server.calls.policy.remembered_approvals import RememberedApprovals
from toolgate.server.features.events.delivery.subscription_rows import StoredSubscription, SubscriptionRows
from toolgate.server.features.events.log.rows import EventFilter, EventLimits, EventRows, Occurrence
from toolgate.server.features.mounts.choices.book import ChoiceBook
from toolgate.server.features.mounts.kept_secrets.secret_store import SecretStore
from toolgate.server.features.mounts.lists.list_store import MountLists
from toolgate.server.features.mounts.lists.personal_lists import PersonalLists
from toolgate.server.features.mounts.mount.profile import NOTHING
from toolgate.server.features.mounts.pins import rows as pin_rows
from toolgate.server.features.mounts.pins.definitions import define_item
from toolgate.server.features.mounts.sign_in import rows as sign_in_rows
from toolgate.server.features.mounts.sign_in.store import ConnectionStore, Departure, FarClient, SignedIn
from toolgate.server.features.nodes import rows as node_rows
from toolgate.server.features.postgres.key_table import KeyTable
from toolgate.server.features.replicas.deployment import find_deployment
from toolgate.server.protocol.session import ApprovalRequest
from toolgate.server.state import flags, tables
from toolgate.server.state.audit import chains
from toolgate.server.state.audit.entry import AuditEntry, AuditNote, ChainKey, format_statement
from toolgate.server.state.keys.file import KeyFile, create_file
from toolgate.server.state.keys.sealed_state import Sealer
from toolgate.server.state.keys.sealing_keys import KeyFolder
from toolgate.server.state.rows import approvals as approval_rows
from toolgate.server.state.rows import clients as client_rows
from toolgate.server.state.rows import grants as grant_rows
from toolgate.server.state.rows import people as people_rows
from toolgate.server.state.rows.callback_timer import CallbackTimer
from toolgate.server.state.rows.callbacks import CallbackStore
from toolgate.server.state.rows.plans import PlanStore
from toolgate.server.state.rows.sessions import SessionDetails, SessionRecords, StoredEvent, encode_details
from toolgate.server.state.rows.tasks import TaskRows
from toolgate.server.state.rows.todos import TodoStore
from toolgate.server.state.rows.working_directories import WorkingDirectories
from toolgate.server.state.sqlite.store import SqliteStore
from toolgate.server.state.store import Store
from toolgate.server.state.tables import VERSION

LONG = 3e9  # seconds: no clean-up takes it away
AUDIT_KEY = b"k" * 32
BACK = "http://127.0.0.1:5000/back"


def made(folder: Path) -> str:
    """Return the SQL of a used database, in a new state folder."""
    asyncio.run(_use_folder(folder))
    with contextlib.closing(sqlite3.connect(folder / "state.db")) as connection:
        version = connection.execute("PRAGMA user_version").fetchone()[0]
        assert version == VERSION
        lines = [line.rstrip() for text in connection.iterdump() for line in text.splitlines()]
    return "\n".join([*lines, f"PRAGMA user_version = {version};", ""])


async def _use_folder(folder: Path) -> None:
    store = SqliteStore(folder)
    await use(store)
    store.close()


async def use(store: Store) -> None:
    """Store rows in every table."""
    fired, folder = asyncio.Event(), store.folder
    clock = CallbackTimer(store, lambda _: fired.set())
    for principal in ("local", "u-5f0c6bd6"):
        await _work(store, clock, principal)
    await CallbackStore(store, clock, "local", "").set("tea is ready", 1, 1)
    await clock.start()
    await asyncio.wait_for(fired.wait(), 20)
    await TaskRows(store, clock.processes, time.time, "digest-of-the-server").add("d-1", "local", LONG, b"{}")
    await _serve(store, clock)
    await find_deployment(store)
    await store.transact(_place)
    await store.transact(partial(_pin, store))
    await store.transact(partial(_await_events, EventRows(store, EventLimits(), time.time)))
    person = await Accounts(store).add("ada", "correct horse battery")
    await SigningKeys(store, Sealer(KeyFile(folder / "keys" / "signing"), None)).rotate()
    await store.transact(lambda connection: _sign_in(connection, person.subject))
    asked = ApprovalRequest("Bash", "rm -r build", "", "your workspace", "Bash(rm *)", "6e" * 32, "")
    await RememberedApprovals(store).add("local", asked, "Claude", "always")
    await store.transact(lambda connection: approval_rows.mark_used(connection, "local", "6e" * 32, time.time()))
    await KeyTable(store, b"k" * 32).load()
    await SecretStore(store, KeyFolder(folder / "keys")).set("local", "KEY", "s3cret")
    await _switch_off(store)
    await _connect(store, ConnectionStore(store, KeyFolder(folder / "keys")))
    lists = PersonalLists(store, KeyFolder(folder / "keys"), "far", "a digest")
    await lists.keep(NOTHING.for_principal("u-5f0c6bd5"), MountLists(tools=[{"name": "echo"}]))
    create_file(folder / "keys" / chains.KEY, AUDIT_KEY)
    await store.transact(_record)
    await clock.stop()


async def _connect(store: Store, connections: ConnectionStore) -> None:
    """Store a person's connection to a mounted server, one that begins, and the client that both use."""
    client = FarClient("c-1")
    signed_in = SignedIn("https://far.example", f"{BACK}/token", "", client, BACK, "read", "at-1", "rt-1")
    state = await connections.depart("local", Departure("far", "6e" * 32, "verifier", BACK, True, signed_in))
    used = await connections.take_departure("local", state)
    assert used is not None
    await connections.keep("local", used, signed_in, LONG)
    await connections.keep_client("https://far.example", BACK, client)
    begun = {"hash": "6e" * 32, "principal": "local", "sealed": "AQ==", "until": LONG}
    await store.transact(lambda connection: sign_in_rows.add_departure(connection, time.time(), 8, **begun))


async def _switch_off(store: Store) -> None:
    """Store what two people have switched off, of whom one is gone."""
    choices = ChoiceBook(lambda: store, lambda principal, before, after: None, _share)
    for principal in ("local", "u-5f0c6bd6"):
        await choices.change(principal, lambda choice: choice.with_tools("far", (), ["echo"]))
    await choices.remove("u-5f0c6bd6")
    await choices.load()


async def _share(_principal: str) -> None:
    """No other server is there."""


def _place(connection: Any) -> None:
    """Store two nodes, and the principal of the one that takes new people."""
    node_rows.note_node(connection, "attic", "unix:/run/toolgate/attic.sock", time.time())
    node_rows.note_node(connection, "cellar", "cellar.example:7443", time.time())
    node_rows.bind_address(connection, "attic", "unix:/run/toolgate/attic.sock", [], time.time())
    node_rows.set_draining(connection, "attic", "", draining=True)
    for name in ("attic", "cellar"):
        node_rows.set_limit(connection, name, "", 20)
    node_rows.set_adopting(connection, "cellar", "", adopts=True)
    node_rows.place(connection, "u-5f0c6bd6", ["attic", "cellar"], time.time(), has_files=False, limits={"cellar": 5})


def _pin(store: Store, connection: Any) -> None:
    """Store a mount of which one tool was approved, and another one waits for a review."""
    store.set_flag(flags.MOUNT_BASELINE, "far", True)
    (first, second) = filter(None, (define_item("tool", "name", {"name": name}) for name in ("echo", "send")))
    pin_rows.take_baseline(connection, "far", "5e" * 32, [first], time.time(), seen=True)
    pin_rows.hold(connection, "far", "5e" * 32, [second], time.time())
    pin_rows.approve(connection, "far", "5e" * 32, [first], time.time())
    pin_rows.decide(connection, pin_rows.list_pins(connection, "gone"), "refused", time.time())
    pin_rows.list_baselines(connection, ["far"])
    pin_rows.list_standings(connection, ["far"])
    pin_rows.forget_baseline(connection, "gone", "5e" * 32)
    pin_rows.forget_mount(connection, "gone")


def _await_events(rows: EventRows, connection: Any) -> None:
    """Store an event that a poll and a subscription wait for."""
    wanted = EventFilter("local", "command.ended", "{}")
    rows.read_page(connection, wanted, None, 1)
    subscriptions, far = SubscriptionRows(rows), time.time() + LONG
    fresh = StoredSubscription(
        "sub_1", "local", "local", '"g-1"', BACK, "command.ended", '{"id":7}', "AQ==", far, time.time()
    )
    made, begin, _ = subscriptions.begin(connection, fresh, None, 0.0, 1)
    subscriptions.activate(connection, made, begin, 0.0)
    rows.record(connection, Occurrence("local", "command.ended", "evt_1", b'{"id":7}'))
    over = StoredSubscription("sub_2", "local", "local", '"g-1"', BACK, "command.ended", "{}", "AQ==", far, time.time())
    subscriptions.activate(connection, over, begin, 0.0)
    subscriptions.end(connection, ["sub_2"], b'{"type":"terminated"}', lambda: "msg_terminated_1")


def _record(connection: Any) -> None:
    """Store two chains of the audit log, of which one lost its first line to retention."""
    key, time = ChainKey(AUDIT_KEY), "2026-01-31T12:00:00.000Z"
    for id in ("7c" * 8, "9e" * 8):
        begins = AuditNote(0, time, "begins", {"chain": id, "host": "attic"})
        end = chains.begin_chain(connection, id, begins, {}, key)
        call = AuditEntry(
            0, time, "local", "tests", "", "Bash", None, "6e" * 32, None, "allowed", "bwrap", "ok", 0, 1.5, 10
        )
        lines = chains.format_lines(id, [call], end, key)
        chains.write_lines(connection, lines)
        head = format_statement("head", id, lines.end, key)
        connection.execute(tables.audit_chain.update().where(tables.audit_chain.c.id == id).values(head=head))
    chains.prune_lines(connection, key, 1_770_000_000.0, max_size=900)


async def _serve(store: Store, clock: CallbackTimer) -> None:
    """Store a session with an answer for its client, and a principal in another folder."""
    records, id = SessionRecords(store, clock.processes, "/srv/work"), "9d" * 32
    details = SessionDetails(
        "tests", "2025-11-25", {"roots": {}}, 1, ["note://one"], "/srv/work", b"/srv/work/deep", None
    )
    told = encode_details(details)
    assert told is not None
    await records.add(id, ("", "", ""), told)
    await records.save_pending({id: time.time() + LONG}, {id: [StoredEvent("0a1b2c3d.1.MQ.0123456789", 2, b"{}")]})
    place = WorkingDirectories(store, "/srv/work").get_place("local")
    place.cwd = Path("/srv/work/deep")
    await place.save_cwd()


async def _work(store: Store, clock: CallbackTimer, principal: str) -> None:
    tasks = TodoStore(store, principal, "")
    report = await tasks.create("write the report")
    await tasks.add(report.id, "collect figures, “über” all")
    await tasks.add(report.id, "write")
    await tasks.complete(report.id, 1)
    await tasks.complete((await tasks.create("tidy up")).id)
    await tasks.switch(report.id)
    await PlanStore(store, principal, "").enter("find out why it's slow", "plan.md")
    await CallbackStore(store, clock, principal, "").set("look at the build", 3600, -1)


def _sign_in(connection: Any, subject: str) -> None:
    now = time.time()
    far, email = now + LONG, "ada@example.com"
    ada = {"issuer": people_rows.BUILT_IN, "name": "ada"}
    people_rows.add_login(
        connection, now, hash="1f" * 32, first="1f" * 32, subject=subject, email=email, until=far, **ada
    )
    people_rows.add_pending_login(
        connection, now, hash="2e" * 32, provider="github", question="q", scopes="", until=far
    )
    client_rows.save_client(connection, "c-1", kind="dynamic", metadata="{}", secret="3d" * 32, made_at=now)
    client_rows.mark_approved(connection, "c-1", now)
    where = {"client": "c-1", "subject": "s-ada", "resource": "https://tools.example/mcp", "redirect_uri": BACK}
    grant = grant_rows.add_grant(connection, now, LONG, scope="tools:read", **where)
    grant_rows.mark_grant_used(connection, grant, now)
    grant_rows.add_code(
        connection, "4c" * 32, grant_id=grant, challenge="E9Melhoa2OwvFrEMTJguCHaoeK1t8", expires_at=far
    )
    grant_rows.add_refresh_token(connection, "5b" * 32, grant)
    grant_rows.redeem_refresh_token(connection, "5b" * 32, now, b"salt-of-16-bytes")
    grant_rows.save_consent(connection, now, "tools:read", **where)
    grant_rows.save_person(connection, "s-ada", known_as=subject, email=email, seen_at=now, **ada)
    grant_rows.add_access_token(connection, jti="7f.1", client="c-1", subject="s-ada", grant_id=grant, expires_at=far)
    grant_rows.add_access_token(connection, jti="7f.2", client="c-1", subject="c-1", grant_id=None, expires_at=far)
    grant_rows.mark_used(connection, "8e" * 32, far, "c-1")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        sys.stdout.write(made(Path(folder)))
