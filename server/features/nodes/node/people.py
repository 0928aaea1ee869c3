"""Decide which principals are gone, from what the gateways say and do."""

from collections.abc import Collection, Iterator

from toolgate.server.features.nodes.node.databases import KnownDatabases

MAX_PRINCIPALS = 10_000  # that one gateway acts for: of more, those that came first are not sent ends of tasks
MAX_GONE = 100_000  # names in one gateway's report


class GatewayPeople:
    """The principals that one gateway acted for, and those that can't sign in there, or None where it has not said.
    `database` is the id of its database, "" where it names none."""

    def __init__(self, database: str = "") -> None:
        self.database = database
        self.served: dict[str, None] = {}
        self.gone: set[str] | None = None

    def note_call(self, principal: str) -> bool:
        """Note that the principal calls here. Return whether that is its first call."""
        if self.gone is not None:
            self.gone.discard(principal)
        if principal in self.served:
            return False
        self.served[principal] = None
        if len(self.served) > MAX_PRINCIPALS:
            del self.served[next(iter(self.served))]
        return True

    def has_said(self, principal: str) -> bool:
        """Return whether the gateway has said that the principal is gone."""
        return self.gone is not None and principal in self.gone


class GonePrincipals(Collection[str]):
    """The principals that can't sign in any more; it changes as gateways report.

    Gateways may have different people. A principal is gone if one gateway says so, and every other one that acted for
    it says so too. A call after a report counts more than the report. Nobody is gone once gateways of different
    `databases` have been here: a person gone from one may be another's, whose gateway is away.
    """

    def __init__(self, databases: KnownDatabases | None = None) -> None:
        self._databases = KnownDatabases() if databases is None else databases
        self._gateways: set[GatewayPeople] = set()
        self._called: set[str] = set()  # at gateways that have left, though another one says that they are gone

    @property
    def is_known(self) -> bool:
        """Whether a gateway has said who is gone."""
        return any(each.gone is not None for each in self._gateways)

    def add(self, gateway: GatewayPeople) -> None:
        self._gateways.add(gateway)
        if gateway.database:
            self._databases.note(gateway.database)

    async def keep(self) -> None:
        """Keep which databases have been here for the node's next life. Never raises."""
        await self._databases.keep()

    def remove(self, gateway: GatewayPeople) -> None:
        """Forget a gateway that has left. Whom it acted for, against another one's word, is not gone."""
        self._gateways.discard(gateway)
        self._called.intersection_update(*([set(self._list_said())] if self._called else []))
        self._called.update(name for name in self._list_said() if name in gateway.served and not gateway.has_said(name))

    def __contains__(self, name: object) -> bool:
        if not isinstance(name, str) or name in self._called or self._has_several_databases():
            return False
        said = [each for each in self._gateways if each.has_said(name)]
        return bool(said) and not any(name in each.served for each in self._gateways.difference(said))

    def __iter__(self) -> Iterator[str]:
        return (name for name in set(self._list_said()) if name in self)

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def _has_several_databases(self) -> bool:
        """Return whether gateways of different databases have been here. One without an id counts while it is here."""
        unnamed = {"" for each in self._gateways if not each.database and (each.served or each.gone is not None)}
        return len(unnamed | self._databases.ids) > 1

    def _list_said(self) -> Iterator[str]:
        for each in self._gateways:
            yield from each.gone or ()
