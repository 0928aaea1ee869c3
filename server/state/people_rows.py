"""The rows of people: accounts, login sessions, sign-ins under way at somebody else's page. Each function runs inside a
transaction; what is secret comes here hashed. Times are seconds since the epoch.
"""

from typing import TYPE_CHECKING, Any

from toolgate.server.state import tables

if TYPE_CHECKING:
    from sqlalchemy import ColumnElement, Connection, Table

BUILT_IN = "toolgate:accounts"  # the issuer of accounts: no outside issuer is called like this, theirs are URLs


# Accounts


def list_accounts(connection: "Connection") -> list[Any]:
    """All accounts, by name."""
    of = tables.account
    return list(connection.execute(of.select().order_by(of.c.name)))


def find_account(connection: "Connection", name: str) -> Any:
    """The account's row, or None."""
    of = tables.account
    return connection.execute(of.select().where(of.c.name == name)).one_or_none()


def has_accounts(connection: "Connection") -> bool:
    of = tables.account
    return connection.execute(of.select().limit(1)).first() is not None


def add_account(connection: "Connection", **row: Any) -> None:
    connection.execute(tables.account.insert().values(**row))


def set_password(connection: "Connection", name: str, password: str) -> bool:
    """Whether there is such an account."""
    of = tables.account
    return connection.execute(of.update().where(of.c.name == name).values(password=password)).rowcount == 1


def has_account(connection: "Connection", issuer: str, subject: str) -> bool:
    """Whether a person of the built-in login has their account yet; whether others may come, `SignIn.may_come` says."""
    of = tables.account
    return issuer != BUILT_IN or connection.execute(of.select().where(of.c.subject == subject)).first() is not None


def remove_account(connection: "Connection", name: str) -> None:
    of = tables.account
    connection.execute(of.delete().where(of.c.name == name))


# Login sessions


def find_login(connection: "Connection", hashed: str, now: float) -> Any:
    """The row of a session that lasts, or None."""
    of = tables.login
    return connection.execute(of.select().where(of.c.hash == hashed, of.c.until > now)).one_or_none()


def add_login(connection: "Connection", now: float, **row: Any) -> None:
    """Those that are over go."""
    of = tables.login
    connection.execute(of.delete().where(of.c.until <= now))
    connection.execute(of.insert().values(**row))


def end_login(connection: "Connection", hashed: str) -> None:
    of = tables.login
    connection.execute(of.delete().where(of.c.hash == hashed))


def end_logins(connection: "Connection", issuer: str, subject: str) -> None:
    """All of a person's."""
    of = tables.login
    connection.execute(of.delete().where(*_person(of, issuer, subject)))


def end_all_logins(connection: "Connection") -> None:
    """Everybody's."""
    connection.execute(tables.login.delete())


# Departures


def add_pending_login(connection: "Connection", now: float, **row: Any) -> None:
    of = tables.pending_login
    connection.execute(of.delete().where(of.c.until <= now))
    connection.execute(of.insert().values(**row))


def trim_pending_logins(connection: "Connection", question: str, each: int, all: int) -> None:
    """Leave the newest `each` of a question's departures, where there is one, and the newest `all` of everybody's."""
    of = tables.pending_login
    newest = of.select().with_only_columns(of.c.hash).order_by(of.c.until.desc())
    if question:
        held = newest.where(of.c.question == question).limit(each)
        connection.execute(of.delete().where(of.c.question == question, of.c.hash.not_in(held)))
    connection.execute(of.delete().where(of.c.hash.in_(newest.offset(all))))


def take_pending_login(connection: "Connection", hashed: str, now: float) -> Any:
    """The row, or None: once."""
    of = tables.pending_login
    row = connection.execute(of.select().where(of.c.hash == hashed, of.c.until > now)).one_or_none()
    connection.execute(of.delete().where(of.c.hash == hashed))
    return row


def _person(of: "Table", issuer: str, subject: str) -> "tuple[ColumnElement[bool], ColumnElement[bool]]":
    return of.c.issuer == issuer, of.c.subject == subject
