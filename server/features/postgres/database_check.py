"""Check PostgreSQL: whether it answers, suits, is encrypted and has room, and whether its tables fit this program."""

from typing import TYPE_CHECKING
from urllib.parse import parse_qs, urlsplit

from toolgate.server.cli.doctor.report import CheckError, CheckFinding, CheckNote
from toolgate.server.cli.terminal.output import format_count
from toolgate.server.config.types import is_loopback
from toolgate.server.features.postgres.database_url import DatabaseUrl

if TYPE_CHECKING:
    from toolgate.server.features.postgres.database.description import DatabaseDescription

OLDEST = 15  # the oldest that is tested
PER_SERVER = 10  # connections: eight for transactions, one that shows that the server lives, one that asks
VERIFYING = ("verify-ca", "verify-full")
PRIVATE = "sslmode=verify-full and sslrootcert=FILE in --database, such as /etc/ssl/certs/ca-certificates.crt"


async def check_database(url: DatabaseUrl) -> CheckFinding:
    from toolgate.server.base.errors import StateError  # start-up
    from toolgate.server.features.postgres.open_store import import_driver
    from toolgate.server.state.errors import StateVersionError

    try:
        import_driver()
        from toolgate.server.features.postgres.database.description import describe_database  # start-up

        found = await describe_database(url)
    except StateVersionError as error:
        raise CheckError(str(error), "use a Toolgate that knows it") from None
    except StateError as error:
        raise CheckError(f"{url}: {error}", "start it, or correct --database") from None
    return judge_database(url, found)


def judge_database(url: DatabaseUrl, found: "DatabaseDescription") -> CheckFinding:
    """Return the finding about a PostgreSQL by what it says of itself. Raises CheckError."""
    room = found.connections // PER_SERVER
    told = f"PostgreSQL {found.version} at {url}; {_describe_tables(found.tables)}"
    told += f"; room for {format_count(room, 'server')} with {PER_SERVER} connections each"
    told += f", and {found.servers} {'runs' if found.servers == 1 else 'run'}" if found.servers else ""
    if room == 0:
        few = f"the servers may have {format_count(found.connections, 'connection')}, and one takes {PER_SERVER}"
        raise CheckError(f"{few}: {told}", "raise max_connections in PostgreSQL, or the limit of its user or database")
    if found.major < OLDEST:
        return CheckNote(f"older than {OLDEST}, the oldest that is tested: {told}", "upgrade PostgreSQL")
    if is_remote(url) and not found.is_encrypted:
        return CheckNote(f"passwords and rows cross the network in the clear: {told}", PRIVATE)
    if is_remote(url) and not _verifies(url):
        return CheckNote(f"the certificate of PostgreSQL is not verified: {told}", PRIVATE)
    if found.servers >= room:
        return CheckNote(f"no room for one more server, which a rolling update starts: {told}", "raise max_connections")
    return told


def is_remote(url: DatabaseUrl) -> bool:
    """Return whether the database may be on another machine: it is at no socket and no address of this one."""
    parts = urlsplit(url.secret)
    hosts = parse_qs(parts.query).get("host") or [parts.hostname or ""]
    return any(host and not host.startswith("/") and not is_loopback(host) for host in hosts)


def _verifies(url: DatabaseUrl) -> bool:
    return parse_qs(urlsplit(url.secret).query).get("sslmode", [""])[-1] in VERIFYING


def _describe_tables(version: int | None) -> str:
    from toolgate.server.state.tables import COMPATIBLE_SINCE, VERSION  # start-up

    if version is None:
        return "the first start makes the tables"
    if version > VERSION:
        return f"version {version}, newer than this program's {VERSION}, which can use it"
    if version == VERSION:
        return f"version {version}"
    upgrade = f"version {version}, will be upgraded at the next start: make a backup first"
    return upgrade if version >= COMPATIBLE_SINCE else f"{upgrade}; servers of that version end then"
