"""A server in use walks no table that grows: its own statements, recorded by a plugin in its process."""

import json
from pathlib import Path

from tests.clients.raw_client import ROOT, eventually
from tests.clients.stateless_requests import ask, call
from tests.server.auth.minted_tokens import signed_site
from tests.server.state.test_plans import SMALL
from toolgate.server.state.schema import metadata

RECORDER = """
import json, os, sys
from pathlib import Path

sys.path.insert(0, {root!r})
from sqlalchemy import Engine, event
from tests.server.state.plans import RecordedPlans

plans, file = RecordedPlans(), Path({file!r})

def record(*words):
    plans.record(*words)
    draft = file.with_suffix(".draft")
    draft.write_text(json.dumps({{statement: sorted(walked) for statement, walked in plans.walks.items()}}))
    draft.replace(file)

event.listen(Engine, "before_cursor_execute", record)
"""
AWAITED = (  # the last: the first look at who waits for a file, three seconds after the start
    "FROM callback",
    "FROM task",
    "FROM oauth_person",
    "FROM oauth_grant",
    "FROM event_log",
    "FROM event_subscription",
    "event_subscription.type IN",
)
LISTED = {  # (table, a part of the statement) → why it may walk the table
    ("event_subscription", "WHERE event_subscription.active"): "once, at the start: all are taken up",
    ("event_delivery", "min(event_delivery.number)"): "the same",
    ("event_end", "ORDER BY event_end.ended_at"): "the same",
}
TOOLS = (
    ("TaskManager", {"action": "create", "query": "", "text": "tea"}),
    ("TaskManager", {"action": "list", "query": ""}),
    ("TaskManager", {"action": "complete", "query": "tea"}),
    ("SetCallback", {"action": "set", "message": "tea", "delay_seconds": 1, "repeat_count": 1}),
    ("SetCallback", {"action": "list"}),
    ("PlanMode", {"action": "status"}),
    ("Bash", {"command": "mkdir -p deep; cd deep; echo tea"}),
    ("BackgroundBash", {"command": "true"}),
    ("ListBgTasks", {}),
)


def test_the_statements_of_a_server_in_use_walk_no_table_that_grows(tmp_path: Path) -> None:
    file, folder = tmp_path / "walks.json", tmp_path / "plugins"
    folder.mkdir()
    (folder / "recorder.py").write_text(RECORDER.format(root=str(ROOT), file=str(file)))

    def has_all() -> bool:
        text = file.read_text()
        return all(each in text for each in AWAITED)

    with signed_site(tmp_path) as signed:  # the next server takes up events, as this one has some
        ask(signed.site, signed.token(), "events/poll", name="todo.changed", cursor=None, maxEvents=1)
    with signed_site(tmp_path, "-p", str(folder)) as signed:
        token = signed.token(noted=False)
        ask(signed.site, token, "events/poll", name="todo.changed", cursor=None, maxEvents=1)
        for name, arguments in TOOLS:
            assert not call(signed.site, token, name, arguments).get("isError"), name
        ask(signed.site, token, "resources/list")
        ask(signed.site, token, "resources/read", uri="task://list")
        assert eventually(has_all)
    walks = json.loads(file.read_text())
    growing = metadata.tables.keys() - SMALL.keys()
    found = [(table, text) for text, tables in walks.items() for table in growing.intersection(tables)]
    assert [
        (table, text) for table, text in found if not any(table == name and part in text for name, part in LISTED)
    ] == []
