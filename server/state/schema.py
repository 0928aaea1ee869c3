"""Declare the tables of the state database.

Imports SQLAlchemy, so it is loaded through server/state/tables.py alone. A principal is the opaque text the server made
of its caller; a session is the place's key, "" for the principal's own. Times are seconds since the epoch. A secret is
stored as the SHA-256 of its 256 random bits, a private key sealed. A change here needs a new `VERSION` and a migration.
"""

from typing import Any

from sqlalchemy import Boolean, Column, Float, ForeignKey, Index, Integer, LargeBinary, MetaData, String, Table
from sqlalchemy import ColumnElement as ColumnElement  # for statements and annotations, through the same door
from sqlalchemy import Connection as Connection
from sqlalchemy import Row as Row
from sqlalchemy import func as func
from sqlalchemy import select as select
from sqlalchemy.dialects.sqlite import Insert
from sqlalchemy.dialects.sqlite import insert as insert

metadata = MetaData()


def upsert(table: Table, key: dict[str, Any], row: dict[str, Any]) -> Insert:
    """Return the statement that writes `row` under its primary key, in place of what is there."""
    return insert(table).values(**key, **row).on_conflict_do_update(index_elements=list(key), set_=row)


def _table(name: str, *parts: Column[Any] | Index, **options: Any) -> Table:
    return Table(name, metadata, *parts, **options)


task = _table(
    "task",
    Column("id", Integer, primary_key=True),
    Column("principal", String, nullable=False),
    Column("name", String, nullable=False),
    Column("completed", Boolean, nullable=False),
    Index("task_principal", "principal"),
    sqlite_autoincrement=True,  # an id is never given twice
)
step = _table(
    "step",
    Column("task_id", ForeignKey("task.id", ondelete="CASCADE"), primary_key=True),
    Column("number", Integer, primary_key=True),
    Column("text", String, nullable=False),
    Column("completed", Boolean, nullable=False),
)
focus = _table(  # the current task, of a session and of the principal
    "focus",
    Column("principal", String, primary_key=True),
    Column("session", String, primary_key=True),
    Column("task_id", ForeignKey("task.id", ondelete="CASCADE"), nullable=False),
    Column("set_at", Float, nullable=False),
)
plan = _table(
    "plan",
    Column("principal", String, primary_key=True),
    Column("active", Boolean, nullable=False),
    Column("goal", String, nullable=False),
    Column("plan_file", String),
    Column("started_at", Float, nullable=False),
)
callback = _table(
    "callback",
    Column("principal", String, primary_key=True),
    Column("slot", Integer, primary_key=True),
    Column("message", String, nullable=False),
    Column("delay", Integer, nullable=False),  # seconds
    Column("left", Integer, nullable=False),  # firings; -1 for ever
    Column("next_at", Float, nullable=False),
    Column("session", String, nullable=False),  # that set it
    Column("process", String, nullable=False),  # that fires it
)
firing = _table(
    "firing",
    Column("id", Integer, primary_key=True),
    Column("principal", String, nullable=False),
    Column("slot", Integer, nullable=False),
    Column("message", String, nullable=False),
    Column("fired_at", Float, nullable=False),
    Index("firing_principal", "principal"),
    sqlite_autoincrement=True,  # in the order of time, whatever the clock does
)
deferral = _table(  # a call that has become a task of the extension
    "deferral",
    Column("id", String, primary_key=True),
    Column("principal", String, nullable=False),
    Column("process", String, nullable=False),  # that works on it, or did
    Column("server", String, nullable=False),  # digest of the options the work depends on: only an equal one reruns it
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
session = _table(  # of Streamable HTTP: what it takes to resume one after a restart
    "session",
    Column("id", String, primary_key=True),  # the digest of the real one, which opens the session
    Column("issuer", String, nullable=False),
    Column("subject", String, nullable=False),
    Column("client", String, nullable=False),
    Column("process", String, nullable=False),  # that has it open, or had
    Column("details", LargeBinary, nullable=False),  # JSON: `SessionDetails`
    Column("began_at", Float, nullable=False),
    Column("seen_at", Float, nullable=False),
)
session_message = _table(  # for a session's client, not delivered when the server ended
    "session_message",
    Column("session", ForeignKey("session.id", ondelete="CASCADE"), primary_key=True),
    Column("stream", String, primary_key=True),  # "" for what no request asked for
    Column("number", Integer, primary_key=True),
    Column("data", LargeBinary, nullable=False),  # JSON, as the wire has it
)
place = _table(  # the working directory of a principal
    "place",
    Column("principal", String, primary_key=True),
    Column("workspace", String, primary_key=True),  # of the server; "" where each principal has its own
    Column("cwd", LargeBinary, nullable=False),  # as the system has it: it need not be UTF-8
    Column("moved_at", Float, nullable=False),
)
approval = _table(  # that a person gave for good
    "approval",
    Column("id", String, primary_key=True, nullable=False),
    Column("principal", String, nullable=False),
    Column("key", String, nullable=False),  # digest of all that `ApprovalRequest` covers
    Column("tool", String, nullable=False),
    Column("shown", String, nullable=False),  # the command, or the arguments
    Column("folder", String, nullable=False),
    Column("rule", String, nullable=False),
    Column("client", String, nullable=False),  # that asked
    Column("made_at", Float, nullable=False),
    Column("used_at", Float),
    Index("approval_principal", "principal", "key"),
)

# Nodes

node = _table(  # that servers with --node have reached
    "node",
    Column("name", String, primary_key=True, nullable=False),
    Column("address", String, nullable=False),  # where a server last reached it
    Column("draining", Boolean, nullable=False),  # it gets no new people
    Column("seen_at", Float, nullable=False),
)
placement = _table(  # the node that has a principal's workspace
    "placement",
    Column("principal", String, primary_key=True, nullable=False),
    Column("node", String, nullable=False, index=True),  # its name
    Column("placed_at", Float, nullable=False),  # or when a move of it began last
)

# People

account = _table(
    "account",
    Column("name", String, primary_key=True, nullable=False),
    Column("subject", String, nullable=False, unique=True),
    Column("password", String, nullable=False),  # argon2id
    Column("made_at", Float, nullable=False),
)
login = _table(  # a browser that is signed in
    "login",
    Column("hash", String, primary_key=True, nullable=False),
    Column("first", String, nullable=False),  # the hash it began with: survives the person's signing in again
    Column("issuer", String, nullable=False),
    Column("subject", String, nullable=False),
    Column("name", String, nullable=False),
    Column("email", String),  # verified by the issuer
    Column("until", Float, nullable=False),
    Column("browser", String),  # in a few words, as it names itself
    Index("login_person", "issuer", "subject"),
)
pending_login = _table(  # a browser that has been sent to another issuer to sign in
    "departure",
    Column("hash", String, primary_key=True, nullable=False),
    Column("provider", String, nullable=False),
    Column("question", String, nullable=False),
    Column("scopes", String, nullable=False),
    Column("until", Float, nullable=False),
)
person = _table(  # behind a subject, at the issuer that signs them in
    "oauth_person",
    Column("subject", String, primary_key=True),
    Column("issuer", String, nullable=False),
    Column("known_as", String, nullable=False),  # the subject over there
    Column("name", String, nullable=False),
    Column("email", String),  # verified by the issuer at the last sign-in
    Column("seen_at", Float, nullable=False),
)

# OAuth

client = _table(  # registered dynamically, by its metadata document as last fetched, or by the operator
    "oauth_client",
    Column("id", String, primary_key=True),
    Column("kind", String, nullable=False),
    Column("metadata", String, nullable=False),  # JSON, as it was accepted
    Column("secret", String),  # digest
    Column("made_at", Float, nullable=False),
    Column("granted_at", Float),  # when a person approved it last; never: it goes after a week
    Column("fresh_until", Float),  # of a document: when it is fetched again
    Column("failing_since", Float),  # of a document: when fetching it first failed since it last succeeded
)
grant = _table(  # what a person, or an identity provider for them, has allowed a client
    "oauth_grant",
    Column("id", String, primary_key=True),
    Column("client", String, nullable=False, index=True),
    Column("subject", String, nullable=False, index=True),  # `sub` of its access tokens
    Column("scope", String, nullable=False),
    Column("resource", String, nullable=False),
    Column("redirect_uri", String, nullable=False),
    Column("family", String, nullable=False),  # marks its refresh tokens: see oauth_server/refresh_tokens.py
    Column("made_at", Float, nullable=False),
    Column("used_at", Float),  # when a token was last made of it; null while its code waits
    Column("expires_at", Float, nullable=False),
    Column("revoked_at", Float),
)
code = _table(
    "oauth_code",
    Column("code", String, primary_key=True),  # digest
    Column("grant_id", ForeignKey("oauth_grant.id", ondelete="CASCADE"), nullable=False, index=True),
    Column("challenge", String, nullable=False),
    Column("expires_at", Float, nullable=False),
    Column("redeemed_at", Float),
)
refresh_token = _table(
    "oauth_refresh",
    Column("token", String, primary_key=True),  # digest
    Column("grant_id", ForeignKey("oauth_grant.id", ondelete="CASCADE"), nullable=False, index=True),
    Column("redeemed_at", Float, index=True),
    Column("salt", LargeBinary),  # with the token itself it gives the successor: see oauth_server/refresh_tokens.py
)
consent = _table(
    "oauth_consent",
    Column("subject", String, primary_key=True),
    Column("client", String, primary_key=True),
    Column("redirect_uri", String, primary_key=True),
    Column("resource", String, primary_key=True),
    Column("scope", String, nullable=False),
    Column("given_at", Float, nullable=False),
)
access_token = _table(  # that has not expired, by its `jti`: to deny it with its grant
    "oauth_access",
    Column("jti", String, primary_key=True),
    Column("client", String, nullable=False),
    Column("subject", String, nullable=False, index=True),
    Column("grant_id", ForeignKey("oauth_grant.id"), index=True),  # null: there is none (see machine_grants.py)
    Column("expires_at", Float, nullable=False, index=True),
    Column("denied", Boolean, nullable=False),
)
used_id = _table(  # of an assertion that was used or a question that was answered, until it expires
    "oauth_used",
    Column("id", String, primary_key=True),  # digest: of issuer and `jti`, or of what names a question
    Column("client", String, index=True),  # that came with the assertion
    Column("expires_at", Float, nullable=False, index=True),
)
signing_key = _table(
    "oauth_key",
    Column("kid", String, primary_key=True),
    Column("sealed", String, nullable=False),  # the private JWK
    Column("made_at", Float, nullable=False),
    Column("retired_at", Float),  # when the next one takes over; null: there is none yet
)
