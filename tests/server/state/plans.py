"""Ask the database how it carries out each statement, at the moment when that is executed."""

import json
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from typing import Any

from sqlalchemy import Connection, Engine, event

EXPLAINED = ("SELECT", "UPDATE", "DELETE", "WITH")


class RecordedPlans:
    """The tables that each statement walks as a whole: statement → tables."""

    def __init__(self) -> None:
        self.walks: dict[str, set[str]] = {}
        self._is_asking = False

    def record(self, connection: Connection, cursor: Any, statement: str, parameters: Any, _: Any, many: bool) -> None:
        if self._is_asking or statement in self.walks or not statement.startswith(EXPLAINED):
            return
        if "pg_" in statement or "sqlite_master" in statement:  # the database's own
            return
        values = parameters[0] if many else parameters
        self._is_asking = True
        try:
            ask = _ask_sqlite if connection.dialect.name == "sqlite" else _ask_postgres
            self.walks[statement] = ask(connection, statement, values)
        finally:
            self._is_asking = False


def _ask_sqlite(connection: Connection, statement: str, values: Any) -> set[str]:
    raw: Any = connection.connection.driver_connection
    details = [row[3] for row in raw.execute(f"EXPLAIN QUERY PLAN {statement}", values)]
    takes_some = (
        "LIMIT" in statement and "WHERE" not in statement and not any("TEMP B-TREE" in each for each in details)
    )
    return {each.split()[1] for each in details if each.startswith("SCAN ") and not takes_some}


def _ask_postgres(connection: Connection, statement: str, values: Any) -> set[str]:
    connection.exec_driver_sql("SET LOCAL enable_seqscan = off")  # the tables are small
    plan = connection.exec_driver_sql(f"EXPLAIN (FORMAT JSON) {statement}", values).scalar_one()
    (root,) = json.loads(plan) if isinstance(plan, str) else plan
    return set(_find_walks(root["Plan"], takes_some=False))


def _find_walks(node: dict[str, Any], *, takes_some: bool) -> Iterator[str]:
    """Yield the tables that a plan walks: row by row, or by all of an index."""
    is_walk = node["Node Type"] == "Seq Scan" or (
        node["Node Type"] in ("Index Scan", "Index Only Scan") and "Index Cond" not in node
    )
    if is_walk and not (takes_some and "Filter" not in node):
        yield node["Relation Name"]
    takes_some = node["Node Type"] == "Limit" or (takes_some and node["Node Type"] not in ("Sort", "Aggregate"))
    for each in node.get("Plans", ()):
        yield from _find_walks(each, takes_some=takes_some)


@contextmanager
def recorded_plans() -> Generator[RecordedPlans]:
    """Record the plans of all statements in this context."""
    plans = RecordedPlans()
    event.listen(Engine, "before_cursor_execute", plans.record)
    try:
        yield plans
    finally:
        event.remove(Engine, "before_cursor_execute", plans.record)
