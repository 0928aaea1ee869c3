"""Every statement of a usual session finds its rows by an index, on SQLite and on PostgreSQL."""

import json
from functools import partial
from pathlib import Path

from tests.server.state import fixture
from tests.server.state.each_store import ON_EACH, with_store
from tests.server.state.plans import recorded_plans
from toolgate.server.auth.grants import Grants
from toolgate.server.auth.login.accounts import Accounts
from toolgate.server.calls.policy.remembered_approvals import RememberedApprovals
from toolgate.server.features.events.delivery.subscription_rows import SubscriptionRows
from toolgate.server.features.events.log.log import EventLog
from toolgate.server.features.events.log.rows import EventFilter
from toolgate.server.state.rows import clients as client_rows
from toolgate.server.state.rows import grants as grant_rows
from toolgate.server.state.rows import people as people_rows
from toolgate.server.state.rows.callback_timer import CallbackTimer, serves_everyone
from toolgate.server.state.rows.callbacks import CallbackStore
from toolgate.server.state.rows.plans import PlanStore
from toolgate.server.state.rows.sessions import SessionRecords
from toolgate.server.state.rows.tasks import TaskRows
from toolgate.server.state.rows.todos import TodoStore
from toolgate.server.state.schema import metadata
from toolgate.server.state.store import Store

pytestmark = ON_EACH

SMALL = {  # table → why it does not grow
    "alembic_version": "one row",
    "audit_chain": "one row for each process",
    "deployment": "one row",
    "node": "one row for each node",
    "node_address": "one row for each node",
    "oauth_key": "two rows or three",
    "schema_version": "one row",
    "sealing_key": "two rows for each key",
}
LISTED = {  # (table, a part of the statement) → why it may walk the table
    ("placement", "count(*) AS people"): "once for each new person of a server with nodes, by an index alone",
    ("mount_list", "sum(mount_list.size)"): "10,000 rows at most, where a person is shown others, by an index alone",
    ("oauth_grant", "DELETE FROM oauth_client"): "a sweep: PostgreSQL joins tables of a few rows as a whole",
    ("oauth_client", "DELETE FROM oauth_consent"): "the same",
}


async def use_todos(store: Store) -> None:
    todos = TodoStore(store, "ada", "s-1")
    todo = await todos.create("tea")
    await todos.add(todo.id, "boil water")
    await todos.complete(todo.id, 1)
    await todos.switch(todo.id)
    await todos.complete(todo.id)
    await todos.list_open()
    await todos.list_newest(100)
    await todos.list_ids()
    await todos.all()
    await todos.list_first(8, 4)


async def use_callbacks(store: Store) -> None:
    timer = CallbackTimer(store, lambda _: None)
    callbacks = CallbackStore(store, timer, "ada", "")
    await callbacks.set("tea", 3_600, 1)
    await timer.fire_due()
    await callbacks.list()
    await callbacks.cancel(None)
    await callbacks.list_fired()
    timer.processes.close()


async def use_events(store: Store) -> None:
    log = EventLog(store)
    subscriptions = SubscriptionRows(log.rows)
    page = await log.read_page(EventFilter("ada", "todo.changed", "{}"), None, 10)
    await log.read_page(EventFilter("ada", "todo.changed", "{}"), page.position, 10)
    await store.transact(partial(log.rows.list_own_interests, principal="ada"))
    await store.transact(partial(subscriptions.list_states, principal="local"))
    await store.transact(partial(log.rows.list_interests, types=["files.changed", "output.matched"]))
    await log.sweep()
    await log.forget("ada")


async def use_processes(store: Store) -> None:
    """Take over what other processes left."""
    processes = store.open_processes()
    records = SessionRecords(store, processes, "/srv/work")
    for session in await records.list_orphaned(1e9, 10):
        await records.take_over(session.id)
    tasks = TaskRows(store, processes, store.now, "digest-of-the-server")
    await tasks.adopt(serves_everyone)
    await tasks.find("local", ["d-1"])
    processes.close()


async def use_sign_in(store: Store) -> None:
    """Register a client, look at pages, refresh, and sweep."""
    now, accounts, grants = store.now(), Accounts(store), Grants(store, {})
    await accounts.is_empty()
    ada = await accounts.find_account("ada")
    assert ada is not None
    words = ("client_name", "redirect_uris", "token_endpoint_auth_method", "grant_types")
    metadata = json.dumps(dict.fromkeys(words, ""))
    client = partial(client_rows.save_client, id="c-1", kind="dynamic", metadata=metadata, made_at=now)
    await store.transact(client)
    await grants.list_newest(ada)
    await grants.has_grant(ada, "c-1")
    await grants.find_names(["g-1"], ["c-1"])
    for read in (
        partial(client_rows.make_room, kind="dynamic", most=10_000),
        partial(client_rows.remove_unused_clients, now=now),
        partial(grant_rows.remove_expired, now=now),
        partial(grant_rows.list_denied_tokens, now=now),
        partial(grant_rows.list_people_after, subject="", most=200),
        partial(grant_rows.list_people_since, since=now),
        partial(grant_rows.deny_tokens_of_subjects, subjects=["s-bob"], now=now),
        partial(grant_rows.find_valid_grants, subjects=["s-ada"], now=now),
        partial(grant_rows.list_active_clients, subjects=["s-ada"], now=now),
        partial(grant_rows.count_access_tokens, subject="s-ada", now=now),
        partial(grant_rows.count_used_assertions, client="c-1", now=now),
        partial(people_rows.find_account_subjects, subjects=["s-ada"]),
        partial(people_rows.list_logins, issuer="x", subject="y", now=now),
        partial(people_rows.find_login, hashed="1f" * 32, now=now),
    ):
        await store.transact(read)
    await grants.revoke_all(subject="s-bob")
    await grants.revoke_all(client="c-2")
    await accounts.remove("ada")


async def use_plan_and_approvals(store: Store) -> None:
    plan = PlanStore(store, "ada", "")
    await plan.enter("tea", None)
    await plan.exit()
    await RememberedApprovals(store).list_standing("ada")


def test_no_statement_of_a_session_walks_a_table_that_grows(tmp_path: Path) -> None:
    async def body(store: Store) -> None:
        await fixture.use(store)
        for use in (use_todos, use_callbacks, use_events, use_processes, use_plan_and_approvals, use_sign_in):
            await use(store)

    with recorded_plans() as plans:
        with_store(tmp_path, body)
    walks = [
        (table, statement)
        for statement, tables in plans.walks.items()
        for table in tables & metadata.tables.keys() - SMALL.keys()
        if not any(table == listed and text in statement for listed, text in LISTED)
    ]
    assert len(plans.walks) > 100
    assert not walks, "\n".join(f"{table}: {' '.join(statement.split())}" for table, statement in walks)
