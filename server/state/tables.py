"""The tables of the state database, made when they are first needed: SQLAlchemy costs 370 ms to import.

A principal is the opaque text the server made of its caller; a session is the place's key, "" for the
principal's own. Times are seconds since the epoch.
"""

from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

from toolgate.server.state import oauth
from toolgate.server.state import people_rows as people

if TYPE_CHECKING:
    from sqlalchemy import MetaData, Table

VERSION = 6  # of these tables, in PRAGMA user_version: as many as there are migrations, so a change of theirs adds one


@dataclass(frozen=True, slots=True)
class Tables:
    metadata: "MetaData"
    task: "Table"
    step: "Table"
    focus: "Table"  # the current task, of a session and of the principal
    plan: "Table"
    callback: "Table"
    people: people.PeopleTables
    oauth: oauth.OAuthTables
    firing: "Table"
    deferral: "Table"  # a call that has become a task of the extension, which is none of the above
    session: "Table"  # of Streamable HTTP: what it takes to go on with one after a restart
    message: "Table"  # for a session's client, which it had not got when the server ended
    place: "Table"  # where a principal stands


@cache
def tables() -> Tables:
    from sqlalchemy import MetaData  # start-up

    metadata = MetaData()
    return Tables(
        metadata=metadata,
        task=_task(metadata),
        step=_step(metadata),
        focus=_focus(metadata),
        plan=_plan(metadata),
        callback=_callback(metadata),
        people=people.define(metadata),
        oauth=oauth.declare(metadata),
        firing=_firing(metadata),
        deferral=_deferral(metadata),
        session=_session(metadata),
        message=_message(metadata),
        place=_place(metadata),
    )


def _task(metadata: "MetaData") -> "Table":
    from sqlalchemy import Boolean, Column, Index, Integer, String, Table  # start-up

    return Table(
        "task",
        metadata,
        Column("id", Integer, primary_key=True),
        Column("principal", String, nullable=False),
        Column("name", String, nullable=False),
        Column("completed", Boolean, nullable=False),
        Index("task_principal", "principal"),
        sqlite_autoincrement=True,  # an id is never given twice
    )


def _step(metadata: "MetaData") -> "Table":
    from sqlalchemy import Boolean, Column, ForeignKey, Integer, String, Table  # start-up

    return Table(
        "step",
        metadata,
        Column("task_id", ForeignKey("task.id", ondelete="CASCADE"), primary_key=True),
        Column("number", Integer, primary_key=True),
        Column("text", String, nullable=False),
        Column("completed", Boolean, nullable=False),
    )


def _focus(metadata: "MetaData") -> "Table":
    from sqlalchemy import Column, Float, ForeignKey, String, Table  # start-up

    return Table(
        "focus",
        metadata,
        Column("principal", String, primary_key=True),
        Column("session", String, primary_key=True),
        Column("task_id", ForeignKey("task.id", ondelete="CASCADE"), nullable=False),
        Column("set_at", Float, nullable=False),
    )


def _plan(metadata: "MetaData") -> "Table":
    from sqlalchemy import Boolean, Column, Float, String, Table  # start-up

    return Table(
        "plan",
        metadata,
        Column("principal", String, primary_key=True),
        Column("active", Boolean, nullable=False),
        Column("goal", String, nullable=False),
        Column("plan_file", String),
        Column("started_at", Float, nullable=False),
    )


def _callback(metadata: "MetaData") -> "Table":
    from sqlalchemy import Column, Float, Integer, String, Table  # start-up

    return Table(
        "callback",
        metadata,
        Column("principal", String, primary_key=True),
        Column("slot", Integer, primary_key=True),
        Column("message", String, nullable=False),
        Column("delay", Integer, nullable=False),  # seconds
        Column("left", Integer, nullable=False),  # firings; -1 for ever
        Column("next_at", Float, nullable=False),
        Column("session", String, nullable=False),  # that set it
        Column("process", String, nullable=False),  # that fires it
    )


def _firing(metadata: "MetaData") -> "Table":
    from sqlalchemy import Column, Float, Index, Integer, String, Table  # start-up

    return Table(
        "firing",
        metadata,
        Column("id", Integer, primary_key=True),
        Column("principal", String, nullable=False),
        Column("slot", Integer, nullable=False),
        Column("message", String, nullable=False),
        Column("fired_at", Float, nullable=False),
        Index("firing_principal", "principal"),
        sqlite_autoincrement=True,  # in the order of time, whatever the clock does
    )


def _deferral(metadata: "MetaData") -> "Table":
    from sqlalchemy import Boolean, Column, Float, Index, LargeBinary, String, Table  # start-up

    return Table(
        "deferral",
        metadata,
        Column("id", String, primary_key=True),
        Column("principal", String, nullable=False),
        Column("process", String, nullable=False),  # that works on it, or did
        Column("server", String, nullable=False),  # what that does its work with: only such a one runs it again
        Column("status", String, nullable=False),
        Column("message", String),
        Column("created_at", Float, nullable=False),
        Column("updated_at", Float, nullable=False),
        Column("expires_at", Float, nullable=False),
        Column("outcome", LargeBinary),  # JSON: the result, or the error
        Column("questions", LargeBinary),  # JSON: what the client is asked
        Column("again", LargeBinary),  # JSON: what it takes to run it again; NULL where it must not be
        Column("read", Boolean, nullable=False),  # the client has seen how it ended
        Index("deferral_principal", "principal"),
    )


def _session(metadata: "MetaData") -> "Table":
    from sqlalchemy import Column, Float, LargeBinary, String, Table  # start-up

    return Table(
        "session",
        metadata,
        Column("id", String, primary_key=True),  # the digest of the real one, which opens the session
        Column("issuer", String, nullable=False),
        Column("subject", String, nullable=False),
        Column("client", String, nullable=False),
        Column("process", String, nullable=False),  # that has it open, or had
        Column("details", LargeBinary, nullable=False),  # JSON: a `Details`
        Column("began_at", Float, nullable=False),
        Column("seen_at", Float, nullable=False),
    )


def _message(metadata: "MetaData") -> "Table":
    from sqlalchemy import Column, ForeignKey, Integer, LargeBinary, String, Table  # start-up

    return Table(
        "session_message",
        metadata,
        Column("session", ForeignKey("session.id", ondelete="CASCADE"), primary_key=True),
        Column("stream", String, primary_key=True),  # "" for what no request asked for
        Column("number", Integer, primary_key=True),
        Column("data", LargeBinary, nullable=False),  # JSON, as the wire has it
    )


def _place(metadata: "MetaData") -> "Table":
    from sqlalchemy import Column, Float, LargeBinary, String, Table  # start-up

    return Table(
        "place",
        metadata,
        Column("principal", String, primary_key=True),
        Column("workspace", String, primary_key=True),  # of the server; "" where each principal has its own
        Column("cwd", LargeBinary, nullable=False),  # as the system has it: it need not be UTF-8
        Column("moved_at", Float, nullable=False),
    )
