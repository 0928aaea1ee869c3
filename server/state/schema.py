"""Declare the tables of the state database.

Imports SQLAlchemy, so it is loaded through server/state/tables.py alone. A principal is the opaque text the server made
of its caller; a session is the place's key, "" for the principal's own. Times are seconds since the epoch. A secret is
stored as the SHA-256 of its 256 random bits, a private key sealed. A change here needs a new `VERSION` and a migration.
"""

from importlib import import_module
from typing import Any

from sqlalchemy import (
    ARRAY,
    BigInteger,
    Boolean,
    Column,
    Dialect,
    Float,
    ForeignKey,
    Index,
    LargeBinary,
    MetaData,
    String,
    Table,
    TypeDecorator,
)
from sqlalchemy import ColumnElement as ColumnElement  # for statements and annotations, through the same door
from sqlalchemy import Connection as Connection
from sqlalchemy import Integer as SqliteInteger
from sqlalchemy import Row as Row
from sqlalchemy import bindparam as bindparam
from sqlalchemy import false as false
from sqlalchemy import func as func
from sqlalchemy import select as select
from sqlalchemy import text as text
from sqlalchemy import tuple_ as tuple_

metadata = MetaData()
Integer = BigInteger().with_variant(SqliteInteger, "sqlite")  # 64 bits: SQLite numbers rows only in an INTEGER

ESCAPE = "\x1a"  # the control character "substitute"


class PostgresText(TypeDecorator[str]):
    """Text with any character. PostgreSQL stores no NUL: `ESCAPE` and "0" stand for it, "1" for `ESCAPE`.

    Its order is that of the characters, as in SQLite, whatever the language of the server.
    """

    impl = String(collation="C")
    cache_ok = True

    def process_bind_param(self, value: str | None, dialect: Dialect) -> str | None:
        if value is None or ("\0" not in value and ESCAPE not in value):
            return value
        return value.replace(ESCAPE, f"{ESCAPE}1").replace("\0", f"{ESCAPE}0")

    def process_result_value(self, value: str | None, dialect: Dialect) -> str | None:
        if value is None or ESCAPE not in value:
            return value
        return value.replace(f"{ESCAPE}0", "\0").replace(f"{ESCAPE}1", ESCAPE)


AnyText = String().with_variant(PostgresText(), "postgresql")  # a decorator costs each statement time
AnyTexts = ARRAY(PostgresText())  # of PostgreSQL alone


def write_row(connection: Connection, table: Table, key: dict[str, Any], row: dict[str, Any], **new: Any) -> None:
    """Write `row` under its primary key, in place of what is there. A row that is new gets `new` too."""
    statement = _insert(connection, table).values(**key, **row, **new)
    connection.execute(statement.on_conflict_do_update(index_elements=list(key), set_=row))


def add_row(connection: Connection, table: Table, row: dict[str, Any]) -> bool:
    """Add a row unless there is one with its key. Return whether it was added.

    The count of rows of an INSERT says nothing with some drivers, so the statement returns the row.
    """
    statement = _insert(connection, table).values(row).on_conflict_do_nothing()
    return connection.execute(statement.returning(*table.primary_key)).first() is not None


def list_distinct(connection: Connection, column: Column[Any]) -> list[Any]:
    """Return the values of an indexed column, by one seek each: DISTINCT would read every row."""
    least, found = select(func.min(column)), list[Any]()
    value = connection.execute(least).scalar()
    while value is not None:
        found.append(value)
        value = connection.execute(least.where(column > value)).scalar()
    return found


def _insert(connection: Connection, table: Table) -> Any:
    """Return an INSERT with ON CONFLICT, which SQLAlchemy has for each dialect apart."""
    return import_module(connection.dialect.__module__.rpartition(".")[0]).insert(table)


def _table(name: str, *parts: Column[Any] | Index, **options: Any) -> Table:
    return Table(name, metadata, *parts, **options)


schema_version = _table(  # of these tables: one row
    "schema_version",
    Column("version", Integer, primary_key=True, autoincrement=False, nullable=False),
    Column("compatible_since", Integer, nullable=False),  # the first version that can use them
)
deployment = _table(  # the servers on this database: one row, from the first server with --redis on
    "deployment",
    Column("id", AnyText, primary_key=True, nullable=False),
)
task = _table(
    "task",
    Column("id", Integer, primary_key=True),
    Column("principal", AnyText, nullable=False),
    Column("name", AnyText, nullable=False),
    Column("completed", Boolean, nullable=False),
    Index("task_principal", "principal"),
    Index("task_completed", "principal", "completed", "id"),
    sqlite_autoincrement=True,  # an id is never given twice
)
step = _table(
    "step",
    Column("task_id", ForeignKey("task.id", ondelete="CASCADE"), primary_key=True),
    Column("number", Integer, primary_key=True),
    Column("text", AnyText, nullable=False),
    Column("completed", Boolean, nullable=False),
)
focus = _table(  # the current task, of a session and of the principal
    "focus",
    Column("principal", AnyText, primary_key=True),
    Column("session", AnyText, primary_key=True),
    Column("task_id", ForeignKey("task.id", ondelete="CASCADE"), nullable=False, index=True),
    Column("set_at", Float, nullable=False, index=True),
)
plan = _table(
    "plan",
    Column("principal", AnyText, primary_key=True),
    Column("active", Boolean, nullable=False),
    Column("goal", AnyText, nullable=False),
    Column("plan_file", AnyText),
    Column("started_at", Float, nullable=False),
)
callback = _table(
    "callback",
    Column("principal", AnyText, primary_key=True),
    Column("slot", Integer, primary_key=True),
    Column("message", AnyText, nullable=False),
    Column("delay", Integer, nullable=False),  # seconds
    Column("left", Integer, nullable=False),  # firings; -1 for ever
    Column("next_at", Float, nullable=False),
    Column("session", AnyText, nullable=False),  # that set it
    Column("process", AnyText, nullable=False),  # that fires it
    Index("callback_due", "process", "next_at"),
)
firing = _table(
    "firing",
    Column("id", Integer, primary_key=True),
    Column("principal", AnyText, nullable=False),
    Column("slot", Integer, nullable=False),
    Column("message", AnyText, nullable=False),
    Column("fired_at", Float, nullable=False),
    Index("firing_principal", "principal"),
    sqlite_autoincrement=True,  # in the order of time, whatever the clock does
)
deferral = _table(  # a call that has become a task of the extension
    "deferral",
    Column("id", AnyText, primary_key=True),
    Column("principal", AnyText, nullable=False),
    Column("process", AnyText, nullable=False),  # that works on it, or did
    Column("server", AnyText, nullable=False),  # digest of the options the work depends on: only an equal one reruns it
    Column("status", AnyText, nullable=False),
    Column("message", AnyText),
    Column("created_at", Float, nullable=False),
    Column("updated_at", Float, nullable=False),
    Column("expires_at", Float, nullable=False),
    Column("outcome", LargeBinary),  # JSON: the result, or the error
    Column("questions", LargeBinary),  # JSON: what the client is asked
    Column("again", LargeBinary),  # JSON: what it takes to run it again; NULL where it must not be
    Column("read", Boolean, nullable=False),  # the client has seen how it ended
    Index("deferral_principal", "principal"),
    Index("deferral_server", "server", "status", "process"),
    Index("deferral_expires", "expires_at"),
)
session = _table(  # of Streamable HTTP: what it takes to resume one after a restart
    "session",
    Column("id", AnyText, primary_key=True),  # the digest of the real one, which opens the session
    Column("issuer", AnyText, nullable=False),
    Column("subject", AnyText, nullable=False),
    Column("client", AnyText, nullable=False),
    Column("process", AnyText, nullable=False),  # that has it open, or had
    Column("details", LargeBinary, nullable=False),  # JSON: `SessionDetails`
    Column("began_at", Float, nullable=False),
    Column("seen_at", Float, nullable=False),
    Index("session_process", "process", "seen_at"),
)
session_message = _table(  # for a session's client, not delivered when the server ended
    "session_message",
    Column("session", ForeignKey("session.id", ondelete="CASCADE"), primary_key=True),
    Column("stream", AnyText, primary_key=True),  # "" for what no request asked for
    Column("number", Integer, primary_key=True),
    Column("data", LargeBinary, nullable=False),  # JSON, as the wire has it
)
place = _table(  # the working directory of a principal
    "place",
    Column("principal", AnyText, primary_key=True),
    Column("workspace", AnyText, primary_key=True),  # of the server; "" where each principal has its own
    Column("cwd", LargeBinary, nullable=False),  # as the system has it: it need not be UTF-8
    Column("moved_at", Float, nullable=False, index=True),
)
approval = _table(  # that a person gave for good
    "approval",
    Column("id", AnyText, primary_key=True, nullable=False),
    Column("principal", AnyText, nullable=False),
    Column("key", AnyText, nullable=False),  # digest of all that `ApprovalRequest` covers
    Column("tool", AnyText, nullable=False),
    Column("shown", AnyText, nullable=False),  # the command, or the arguments
    Column("folder", AnyText, nullable=False),
    Column("rule", AnyText, nullable=False),
    Column("client", AnyText, nullable=False),  # that asked
    Column("made_at", Float, nullable=False),
    Column("used_at", Float),
    Index("approval_principal", "principal", "key"),
)

# Events (SEP-3415)

audit_chain = _table(  # of the audit log, one for each process; its texts are sealed: see telemetry/audit/chains.py
    "audit_chain",
    Column("id", AnyText, primary_key=True, nullable=False),
    Column("head", AnyText, nullable=False),  # the newest line
    Column("floor", AnyText),  # the last line that retention removed; null: there is none
    Column("vouched", AnyText),  # the newest line that a line of another chain names
)
audit_line = _table(
    "audit_line",
    Column("chain", AnyText, primary_key=True, nullable=False),
    Column("seq", Integer, primary_key=True, nullable=False, autoincrement=False),
    Column("time", AnyText, nullable=False),  # of the line
    Column("principal", AnyText),  # of the line; null for one about the log itself
    Column("line", LargeBinary, nullable=False),
    Index("audit_line_time", "time", "chain", "seq"),
    Index("audit_line_principal", "principal", "time"),
)
event = _table(  # that happened to a principal who had interest in it
    "event",
    Column("principal", String, primary_key=True, nullable=False),
    Column("number", Integer, primary_key=True, nullable=False, autoincrement=False),  # of the principal, in order
    Column("id", String, nullable=False),  # as clients know it: of the occurrence
    Column("type", String, nullable=False),
    Column("data", LargeBinary, nullable=False),  # JSON: the payload
    Column("happened_at", Float, nullable=False),
    Index("event_id", "principal", "id", unique=True),
    Index("event_type", "principal", "type", "number"),
)
event_log = _table(  # a principal's events together
    "event_log",
    Column("principal", String, primary_key=True, nullable=False),
    Column("name", String, nullable=False),  # random: a cursor of another log is known by it
    Column("last", Integer, nullable=False),  # the highest number ever given
    Column("event_count", Integer, nullable=False),
    Column("byte_count", Integer, nullable=False),  # of all payloads
)
event_interest = _table(  # what a principal waits for: nothing else is recorded
    "event_interest",
    Column("principal", String, primary_key=True, nullable=False),
    Column("type", String, primary_key=True, nullable=False),
    Column("arguments", String, primary_key=True, nullable=False),  # canonical JSON
    Column("since", Integer, nullable=False),  # events up to this number may be missing
    Column("until", Float, nullable=False, index=True),
    Index("event_interest_type", "type", "until"),
)
event_subscription = _table(  # by webhook
    "event_subscription",
    Column("id", String, primary_key=True, nullable=False),
    Column("principal", String, nullable=False),
    Column("owner", String, nullable=False),  # the client of the principal that subscribed last
    Column("grant_key", String, nullable=False),  # JSON: the grant that it ends with
    Column("url", String, nullable=False),
    Column("type", String, nullable=False),
    Column("arguments", String, nullable=False),  # canonical JSON
    Column("sealed", String, nullable=False),  # the secret
    Column("previous", String),  # the secret before it, sealed
    Column("previous_until", Float),
    Column("active", Boolean, nullable=False),  # false until its endpoint is verified
    Column("expires_at", Float, nullable=False),
    Column("has_gap", Boolean, nullable=False),  # an event was given up since the last that was delivered
    Column("made_at", Float, nullable=False),
    Column("delivered", Integer, nullable=False, server_default="0"),  # how many were acknowledged
    Column("delivered_at", Float),
    Column("failing_since", Float),
    Column("last_error", String),
    Index("event_subscription_principal", "principal", "type"),
    Index("event_subscription_type", "type"),
    Index("event_subscription_expires", "expires_at"),
    Index("event_subscription_waiting", "active", "made_at"),
)
event_delivery = _table(  # of an event to a subscription, until it is acknowledged or given up
    "event_delivery",
    Column("subscription", ForeignKey("event_subscription.id", ondelete="CASCADE"), primary_key=True, nullable=False),
    Column("number", Integer, primary_key=True, nullable=False, autoincrement=False),
    Column("attempts", Integer, nullable=False),
    Column("due_at", Float, nullable=False),
)
event_end = _table(  # of a subscription, until its client has heard of it
    "event_end",
    Column("subscription", String, primary_key=True, nullable=False),
    Column("principal", String, nullable=False),
    Column("message", String, nullable=False),  # the id of the message that says so
    Column("body", LargeBinary, nullable=False),  # JSON
    Column("held", LargeBinary, nullable=False),  # the subscription as it was, JSON
    Column("ended_at", Float, nullable=False, index=True),
)
event_endpoint = _table(  # a principal's URL that has answered the challenge
    "event_endpoint",
    Column("principal", String, primary_key=True, nullable=False),
    Column("url", String, primary_key=True, nullable=False),
    Column("verified_at", Float, nullable=False),
)

# Nodes

node = _table(  # that servers with --node have reached
    "node",
    Column("name", AnyText, primary_key=True, nullable=False),
    Column("address", AnyText, nullable=False),  # where a server last reached it
    Column("draining", Boolean, nullable=False),  # it gets no new people
    Column("seen_at", Float, nullable=False),
    Column("max_people", Integer),  # how many people it takes; 0: any, as the operator says; NULL: any, as nobody says
    Column("adopts", Boolean, nullable=False, server_default=false()),  # files of people without a row count there
)
node_address = _table(  # the node that servers reached at each address
    "node_address",
    Column("address", AnyText, primary_key=True, nullable=False),
    Column("name", AnyText, nullable=False),
    Column("since", Float, nullable=False),  # when it first said this name there
)
placement = _table(  # the node that has a principal's workspace
    "placement",
    Column("principal", AnyText, primary_key=True, nullable=False),
    Column("node", AnyText, nullable=False, index=True),  # its name
    Column("placed_at", Float, nullable=False),  # or when a move of it began last
)

# Mounted servers

secret = _table(  # that the configuration of a mount names
    "secret",
    Column("principal", AnyText, primary_key=True, nullable=False),  # whose it is; "": everybody's
    Column("name", AnyText, primary_key=True, nullable=False),
    Column("sealed", AnyText, nullable=False),
    Column("set_at", Float, nullable=False, index=True),
)
mount_baseline = _table(  # a mounted server whose first lists were taken
    "mount_baseline",
    Column("mount", String, primary_key=True, nullable=False),
    Column("server", String, primary_key=True, nullable=False),  # digest of its command or URL
    Column("seen", Boolean, nullable=False),  # a person has seen them
    Column("taken_at", Float, nullable=False),
)
mount_pin = _table(  # one form of what a mounted server lists
    "mount_pin",
    Column("mount", String, primary_key=True, nullable=False),
    Column("server", String, primary_key=True, nullable=False),
    Column("kind", String, primary_key=True, nullable=False),
    Column("digest", String, primary_key=True, nullable=False),
    Column("name", AnyText, nullable=False),  # or the URI
    Column("standing", String, nullable=False),  # approved, held or refused
    Column("definition", LargeBinary, nullable=False),  # canonical JSON; empty where it is too large
    Column("seen_at", Float, nullable=False),  # or when a person decided
)
mount_connection = _table(  # of a person to a mounted server where they have signed in
    "mount_connection",
    Column("principal", AnyText, primary_key=True, nullable=False),
    Column("mount", AnyText, primary_key=True, nullable=False),
    Column("server", AnyText, nullable=False),  # digest of its URL
    Column("sealed", AnyText, nullable=False),  # JSON: the tokens, and where they come from
    Column("expires_at", Float),  # of the access token, where its server says so
    Column("refreshing_since", Float),  # a refresh was sent then, and its answer has not come
    Column("ended", AnyText),  # why the person has to sign in again; null: they need not
    Column("made_at", Float, nullable=False),
    Index("mount_connection_ended", "ended", "expires_at"),
    Index("mount_connection_mount", "mount"),
)
mount_departure = _table(  # a browser that has been sent to a mounted server's authorization server
    "mount_departure",
    Column("hash", AnyText, primary_key=True, nullable=False),
    Column("principal", AnyText, nullable=False),
    Column("sealed", AnyText, nullable=False),  # JSON: what the answer is checked against
    Column("until", Float, nullable=False, index=True),
    Index("mount_departure_principal", "principal"),
)
mount_client = _table(  # that an authorization server has registered for this one
    "mount_client",
    Column("issuer", AnyText, primary_key=True, nullable=False),
    Column("redirect_uri", AnyText, primary_key=True, nullable=False),
    Column("sealed", AnyText, nullable=False),  # JSON: its id, and its secret if it has one
    Column("made_at", Float, nullable=False),
)
mount_choice = _table(  # what a person has switched off of mounted servers
    "mount_choice",
    Column("principal", AnyText, primary_key=True, nullable=False),
    Column("switched_off", AnyText, nullable=False),  # JSON
    Column("changed_at", Float, nullable=False, index=True),
)
mount_list = _table(  # what one person's clients were shown of a mounted server, where that is theirs alone
    "mount_list",
    Column("principal", AnyText, primary_key=True, nullable=False),
    Column("mount", AnyText, primary_key=True, nullable=False),
    Column("profile", AnyText, primary_key=True, nullable=False),  # digest of what such a client can do
    Column("server", AnyText, nullable=False),  # digest of the mount's command or URL
    Column("size", Integer, nullable=False),  # characters of `sealed`
    Column("kept_at", Float, nullable=False),
    Column("sealed", AnyText, nullable=False),  # JSON
    Index("mount_list_kept_at", "kept_at", "size"),  # the bounds of all: by the index alone
)

# People

account = _table(
    "account",
    Column("name", AnyText, primary_key=True, nullable=False),
    Column("subject", AnyText, nullable=False, unique=True),
    Column("password", AnyText, nullable=False),  # argon2id
    Column("made_at", Float, nullable=False),
)
login = _table(  # a browser that is signed in
    "login",
    Column("hash", AnyText, primary_key=True, nullable=False),
    Column("first", AnyText, nullable=False),  # the hash it began with: survives the person's signing in again
    Column("issuer", AnyText, nullable=False),
    Column("subject", AnyText, nullable=False),
    Column("name", AnyText, nullable=False),
    Column("email", AnyText),  # verified by the issuer
    Column("until", Float, nullable=False, index=True),
    Column("browser", AnyText),  # in a few words, as it names itself
    Index("login_person", "issuer", "subject"),
)
pending_login = _table(  # a browser that has been sent to another issuer to sign in
    "departure",
    Column("hash", AnyText, primary_key=True, nullable=False),
    Column("provider", AnyText, nullable=False),
    Column("question", AnyText, nullable=False),
    Column("scopes", AnyText, nullable=False),
    Column("until", Float, nullable=False, index=True),
)
person = _table(  # behind a subject, at the issuer that signs them in
    "oauth_person",
    Column("subject", AnyText, primary_key=True),
    Column("issuer", AnyText, nullable=False),
    Column("known_as", AnyText, nullable=False),  # the subject over there
    Column("name", AnyText, nullable=False),
    Column("email", AnyText),  # verified by the issuer at the last sign-in
    Column("seen_at", Float, nullable=False, index=True),
)

# OAuth

client = _table(  # registered dynamically, by its metadata document as last fetched, or by the operator
    "oauth_client",
    Column("id", AnyText, primary_key=True),
    Column("kind", AnyText, nullable=False),
    Column("metadata", AnyText, nullable=False),  # JSON, as it was accepted
    Column("secret", AnyText),  # digest
    Column("made_at", Float, nullable=False),
    Column("granted_at", Float),  # when a person approved it last; never: it goes after a week
    Column("fresh_until", Float),  # of a document: when it is fetched again
    Column("failing_since", Float),  # of a document: when fetching it first failed since it last succeeded
    Index("oauth_client_oldest", "kind", "granted_at", "made_at"),
    Index("oauth_client_unused", "granted_at", "made_at"),
)
grant = _table(  # what a person, or an identity provider for them, has allowed a client
    "oauth_grant",
    Column("id", AnyText, primary_key=True),
    Column("client", AnyText, nullable=False, index=True),
    Column("subject", AnyText, nullable=False, index=True),  # `sub` of its access tokens
    Column("scope", AnyText, nullable=False),
    Column("resource", AnyText, nullable=False),
    Column("redirect_uri", AnyText, nullable=False),
    Column("family", AnyText, nullable=False),  # marks its refresh tokens: see oauth_server/refresh_tokens.py
    Column("made_at", Float, nullable=False),
    Column("used_at", Float),  # when a token was last made of it; null while its code waits
    Column("expires_at", Float, nullable=False, index=True),
    Column("revoked_at", Float, index=True),
    Index("oauth_grant_newest", "subject", "made_at", "revoked_at", "used_at", "expires_at"),
    Index("oauth_grant_pair", "subject", "client"),
    Index("oauth_grant_unused", "used_at", "made_at"),
)
code = _table(
    "oauth_code",
    Column("code", AnyText, primary_key=True),  # digest
    Column("grant_id", ForeignKey("oauth_grant.id", ondelete="CASCADE"), nullable=False, index=True),
    Column("challenge", AnyText, nullable=False),
    Column("expires_at", Float, nullable=False, index=True),
    Column("redeemed_at", Float),
)
refresh_token = _table(
    "oauth_refresh",
    Column("token", AnyText, primary_key=True),  # digest
    Column("grant_id", ForeignKey("oauth_grant.id", ondelete="CASCADE"), nullable=False, index=True),
    Column("redeemed_at", Float, index=True),
    Column("salt", LargeBinary),  # with the token itself it gives the successor: see oauth_server/refresh_tokens.py
)
consent = _table(
    "oauth_consent",
    Column("subject", AnyText, primary_key=True),
    Column("client", AnyText, primary_key=True),
    Column("redirect_uri", AnyText, primary_key=True),
    Column("resource", AnyText, primary_key=True),
    Column("scope", AnyText, nullable=False),
    Column("given_at", Float, nullable=False, index=True),
    Index("oauth_consent_client", "client"),
)
access_token = _table(  # that has not expired, by its `jti`: to deny it with its grant
    "oauth_access",
    Column("jti", AnyText, primary_key=True),
    Column("client", AnyText, nullable=False),
    Column("subject", AnyText, nullable=False, index=True),
    Column("grant_id", ForeignKey("oauth_grant.id"), index=True),  # null: there is none (see machine_grants.py)
    Column("expires_at", Float, nullable=False, index=True),
    Column("denied", Boolean, nullable=False),
    Index("oauth_access_denied", "denied", "expires_at"),
)
used_id = _table(  # of an assertion that was used or a question that was answered, until it expires
    "oauth_used",
    Column("id", AnyText, primary_key=True),  # digest: of issuer and `jti`, or of what names a question
    Column("client", AnyText, index=True),  # that came with the assertion
    Column("expires_at", Float, nullable=False, index=True),
)
sealing_key = _table(  # of servers with --secret
    "sealing_key",
    Column("id", AnyText, primary_key=True, nullable=False),
    Column("name", AnyText, nullable=False),
    Column("sealed", AnyText, nullable=False),
    Column("begins_at", Float, nullable=False),  # when it seals
    Column("ends_at", Float),  # until when it is valid for reading; null: there is no newer one
)
signing_key = _table(
    "oauth_key",
    Column("kid", AnyText, primary_key=True),
    Column("sealed", AnyText, nullable=False),  # the private JWK
    Column("made_at", Float, nullable=False),
    Column("retired_at", Float),  # when the next one takes over; null: there is none yet
)
