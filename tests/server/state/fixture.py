"""Makes the fixture of the present schema, with rows in every table, by use of today's code. Whoever adds a version to
the tables adds the fixture that this writes, and leaves those before as they are:

    python -m tests.server.state.fixture > tests/server/state/fixtures/7.sql
"""

import asyncio
import contextlib
import sqlite3
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from toolgate.server.auth.login.accounts import Accounts
from toolgate.server.auth.tokens.signing_keys import Keys
from toolgate.server.state import clients, grants, people
from toolgate.server.state.callback_timer import Clock
from toolgate.server.state.callbacks import Callbacks
from toolgate.server.state.places import Places
from toolgate.server.state.plans import Plan
from toolgate.server.state.sealed_state import Seal
from toolgate.server.state.sessions import Details, Message, SessionRecords, spelled
from toolgate.server.state.store import VERSION, Store
from toolgate.server.state.task_rows import Ledger
from toolgate.server.state.tasks import Tasks

LONG = 3e9  # seconds: no clean-up takes it away
BACK = "http://127.0.0.1:5000/back"


def made(folder: Path) -> str:
    """The SQL of a database that was used, in a new state folder."""
    asyncio.run(_use(folder))
    with contextlib.closing(sqlite3.connect(folder / "state.db")) as connection:
        version = connection.execute("PRAGMA user_version").fetchone()[0]
        assert version == VERSION
        lines = [line.rstrip() for text in connection.iterdump() for line in text.splitlines()]
    return "\n".join([*lines, f"PRAGMA user_version = {version};", ""])


async def _use(folder: Path) -> None:
    store, fired = Store(folder), asyncio.Event()
    clock = Clock(store, lambda _: fired.set())
    for principal in ("local", "u-5f0c6bd6"):
        await _work(store, clock, principal)
    await Callbacks(store, clock, "local", "").set("tea is ready", 1, 1)
    await clock.start()
    await asyncio.wait_for(fired.wait(), 20)
    await Ledger(store, clock.processes, time.time, "digest-of-the-server").put("d-1", "local", LONG, b"{}")
    await _serve(store, clock)
    person = await Accounts(store).add("ada", "correct horse battery")
    await Keys(store, Seal(folder / "keys" / "signing", None)).rotate()
    await store.transact(lambda connection: _sign_in(connection, person.subject))
    await clock.stop()
    store.close()


async def _serve(store: Store, clock: Clock) -> None:
    """A session whose client has an answer to come for, and a principal that stands elsewhere."""
    records, id = SessionRecords(store, clock.processes, "/srv/work"), "9d" * 32
    details = Details("tests", "2025-11-25", {"roots": {}}, 1, ["note://one"], "/srv/work", b"/srv/work/deep", None)
    told = spelled(details)
    assert told is not None
    await records.put(id, ("", "", ""), told)
    await records.leave({id: time.time() + LONG}, {id: [Message("0a1b2c3d.1.MQ.0123456789", 2, b"{}")]})
    place = Places(store, "/srv/work").of("local")
    place.cwd = Path("/srv/work/deep")
    await place.keep()


async def _work(store: Store, clock: Clock, principal: str) -> None:
    tasks = Tasks(store, principal, "")
    report = await tasks.create("write the report")
    await tasks.add(report.id, "collect figures, “über” all")
    await tasks.add(report.id, "write")
    await tasks.complete(report.id, 1)
    await tasks.complete((await tasks.create("tidy up")).id)
    await tasks.switch(report.id)
    await Plan(store, principal, "").enter("find out why it's slow", "plan.md")
    await Callbacks(store, clock, principal, "").set("look at the build", 3600, -1)


def _sign_in(connection: Any, subject: str) -> None:
    now = time.time()
    far, email = now + LONG, "ada@example.com"
    ada = {"issuer": people.BUILT_IN, "name": "ada"}
    people.add_login(connection, now, hash="1f" * 32, first="1f" * 32, subject=subject, email=email, until=far, **ada)
    people.add_departure(connection, now, hash="2e" * 32, provider="github", question="q", scopes="", until=far)
    clients.put(connection, "c-1", kind="dynamic", metadata="{}", secret="3d" * 32, made_at=now)
    clients.approved(connection, "c-1", now)
    where = {"client": "c-1", "subject": "s-ada", "resource": "https://tools.example/mcp", "redirect_uri": BACK}
    grant = grants.put_grant(connection, now, LONG, scope="tools:read", **where)
    grants.touch(connection, grant, now)
    grants.put_code(connection, "4c" * 32, grant_id=grant, challenge="E9Melhoa2OwvFrEMTJguCHaoeK1t8", expires_at=far)
    grants.put_refresh(connection, "5b" * 32, grant)
    grants.redeem_refresh(connection, "5b" * 32, now, b"salt-of-16-bytes")
    grants.put_consent(connection, now, "tools:read", **where)
    grants.put_person(connection, "s-ada", known_as=subject, email=email, seen_at=now, **ada)
    grants.put_access(connection, jti="7f.1", client="c-1", subject="s-ada", grant_id=grant, expires_at=far)
    grants.put_access(connection, jti="7f.2", client="c-1", subject="c-1", grant_id=None, expires_at=far)
    grants.use(connection, "8e" * 32, far, "c-1")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        sys.stdout.write(made(Path(folder)))
