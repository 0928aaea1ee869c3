"""Read and write the rows of accounts, login sessions, and logins that wait for an external issuer.

Each function runs inside a transaction. Secrets arrive hashed. Times are seconds since the epoch.
"""

from collections.abc import Sequence
from typing import Any

from toolgate.server.state import tables

MAX_VALUES = 10_000  # values in one statement: SQLite takes 32,766
BUILT_IN = "toolgate:accounts"  # the issuer of accounts: external issuers are URLs


# Accounts


def list_accounts(connection: "tables.Connection") -> list[Any]:
    """Return all accounts, by name."""
    return list(connection.execute(tables.account.select().order_by(tables.account.c.name)))


def find_account(connection: "tables.Connection", name: str) -> Any:
    """Return the account's row, or None."""
    return connection.execute(tables.account.select().filter_by(name=name)).one_or_none()


def has_accounts(connection: "tables.Connection") -> bool:
    return connection.execute(tables.account.select().limit(1)).first() is not None


def add_account(connection: "tables.Connection", **row: Any) -> None:
    connection.execute(tables.account.insert().values(**row))


def set_password(connection: "tables.Connection", name: str, password: str) -> bool:
    """Set the password, and return whether the account exists."""
    table = tables.account
    return connection.execute(table.update().where(table.c.name == name).values(password=password)).rowcount == 1


def has_account(connection: "tables.Connection", issuer: str, subject: str) -> bool:
    """Return whether the person's account still exists; True for people of other issuers."""
    table = tables.account
    return issuer != BUILT_IN or connection.execute(table.select().filter_by(subject=subject)).first() is not None


def find_account_subjects(connection: "tables.Connection", subjects: Sequence[str]) -> set[str]:
    """Return those of these subjects that have an account."""
    table, found = tables.account, set[str]()
    for begin in range(0, len(subjects), MAX_VALUES):
        some = table.c.subject.in_(subjects[begin : begin + MAX_VALUES])
        found |= set(connection.execute(tables.select(table.c.subject).where(some)).scalars())
    return found


def remove_account(connection: "tables.Connection", name: str) -> None:
    connection.execute(tables.account.delete().where(tables.account.c.name == name))


# Login sessions


def find_login(connection: "tables.Connection", hashed: str, now: float) -> Any:
    """Return the row of a session that has not expired, or None."""
    table = tables.login
    return connection.execute(table.select().where(table.c.hash == hashed, table.c.until > now)).one_or_none()


def add_login(connection: "tables.Connection", now: float, **row: Any) -> None:
    """Add a login session, and remove those that have expired."""
    table = tables.login
    connection.execute(table.delete().where(table.c.until <= now))
    connection.execute(table.insert().values(**row))


def end_login(connection: "tables.Connection", hashed: str) -> None:
    connection.execute(tables.login.delete().where(tables.login.c.hash == hashed))


def list_logins(connection: "tables.Connection", issuer: str, subject: str, now: float) -> list[Any]:
    """Return the rows of a person's sessions that have not expired, the newest first."""
    table = tables.login
    mine = table.select().where(table.c.issuer == issuer, table.c.subject == subject, table.c.until > now)
    return list(connection.execute(mine.order_by(table.c.until.desc(), table.c.hash)))


def end_logins(connection: "tables.Connection", issuer: str, subject: str) -> None:
    """End all login sessions of a person."""
    connection.execute(tables.login.delete().where(tables.login.c.issuer == issuer, tables.login.c.subject == subject))


def end_all_logins(connection: "tables.Connection") -> None:
    """End all login sessions."""
    connection.execute(tables.login.delete())


# Logins that wait for an external issuer


def add_pending_login(connection: "tables.Connection", now: float, **row: Any) -> None:
    table = tables.pending_login
    connection.execute(table.delete().where(table.c.until <= now))
    connection.execute(table.insert().values(**row))


def trim_pending_logins(connection: "tables.Connection", question: str, each: int, all: int) -> None:
    """Keep the newest `each` of a question, if there is one, and the newest `all` of all."""
    table = tables.pending_login
    newest = table.select().with_only_columns(table.c.hash).order_by(table.c.until.desc())
    if question:
        newest_of_question = newest.where(table.c.question == question).limit(each)
        connection.execute(table.delete().where(table.c.question == question, table.c.hash.not_in(newest_of_question)))
    connection.execute(table.delete().where(table.c.hash.in_(newest.offset(all))))


def take_pending_login(connection: "tables.Connection", hashed: str, now: float) -> Any:
    """Remove the row and return it, or None."""
    table = tables.pending_login
    row = connection.execute(table.delete().where(table.c.hash == hashed).returning(*table.c)).one_or_none()
    return row if row is not None and row.until > now else None
