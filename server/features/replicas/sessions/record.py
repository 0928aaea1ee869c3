"""Hold what all replicas know of a session, and merge what two of them changed at once."""

import msgspec

from toolgate.server.base.principals.principal import GrantKey, Principal
from toolgate.server.protocol.session import DEFAULT_LEVEL
from toolgate.tools.api.context.services import PlanState

MAX_RECORD = 64 * 2**10  # bytes: a client may send megabytes of capabilities and subscriptions
SETS = ("grants", "subscribed")


class SessionRecord(msgspec.Struct, frozen=True, omit_defaults=True):
    """A session, as it is in Redis.

    - `version`: counts the changes.
    - `seen`: about when it was last used, in seconds since 1970.
    - `ready`: the client has sent notifications/initialized.
    - `grants`: their tokens used it. `scopes`: of any of these; None: all.
    - `previous`: the directory before `cwd`, for `cd -`.
    - `listener`: the replica where the client reads unrequested messages, or "".
    """

    issuer: str
    subject: str
    client: str
    began: float
    seen: float
    version: int = 1
    revision: str = ""
    capabilities: msgspec.Raw = msgspec.Raw(b"{}")
    name: str = ""
    ready: bool = False
    level: int | None = DEFAULT_LEVEL
    cwd: bytes | None = None
    plan: PlanState | None = None
    subscribed: tuple[str, ...] = ()
    grants: tuple[GrantKey, ...] = ()
    scopes: tuple[str, ...] | None = None
    listener: str = ""
    previous: bytes | None = None

    @property
    def owner(self) -> str:
        return Principal(self.issuer, self.subject, self.client).owner


_decoder = msgspec.json.Decoder(SessionRecord)


def decode_record(data: bytes) -> SessionRecord | None:
    """Return the record, or None for one of another version of the program."""
    try:
        return _decoder.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return None


def encode_record(record: SessionRecord) -> bytes:
    """Return the record's form in Redis; without subscriptions and capabilities if it is too large with them."""
    data = msgspec.json.encode(record)
    if len(data) > MAX_RECORD:
        data = msgspec.json.encode(msgspec.structs.replace(record, subscribed=()))
    if len(data) > MAX_RECORD:
        data = msgspec.json.encode(msgspec.structs.replace(record, subscribed=(), capabilities=msgspec.Raw(b"{}")))
    return data


def merge_records(base: SessionRecord, mine: SessionRecord, theirs: SessionRecord) -> SessionRecord:
    """Return `theirs` with what `mine` has changed since `base`. Of two changes of a field mine counts; of sets all
    additions and removals count."""
    changes: dict[str, object] = {"version": theirs.version + 1}
    for name in base.__struct_fields__:
        old, own, other = getattr(base, name), getattr(mine, name), getattr(theirs, name)
        if own == old or name == "version":
            continue
        if name in SETS:
            own = tuple(sorted((set(other) - (set(old) - set(own))) | (set(own) - set(old)), key=str))
        elif name == "scopes":
            own = None if own is None or other is None else tuple(sorted({*own, *other}))
        elif name == "ready":
            own = own or other
        elif name == "listener":
            own = own or ("" if other == old else other)  # another replica may have a reader meanwhile
        elif name == "seen":
            own = max(own, other)
        changes[name] = own
    return msgspec.structs.replace(theirs, **changes)
