"""Name the caller of a request: a person or client as its issuer knows it. Knows nothing of tokens."""

import hashlib

import msgspec


class Principal(msgspec.Struct, frozen=True, eq=False):
    """A person, or a client acting for itself, as known to one issuer.

    - `client`: the client the call came through.
    - `scopes`: what it may do; None: everything (stdio, and `--auth none`).
    - `name`: names folders and rows, derived from (issuer, subject). `owner`: binds sessions, streams and sealed state,
      derived from (issuer, client, subject). Both are digests, so they are safe in paths and logs.
    - `until`: end of the credential, in seconds since 1970, if revocation can't be checked.
    - `grant`: id of our grant behind the token, or "".
    - `grant_scopes`: the scopes of the grant, if the token was requested with fewer.

    Two are equal if they are the same caller with the same scopes, whatever credential shows it.
    """

    issuer: str
    subject: str
    client: str
    scopes: frozenset[str] | None = None
    until: float | None = None
    grant: str = ""
    grant_scopes: frozenset[str] | None = None
    name: str = ""  # with `owner` derived, whatever is given
    owner: str = ""

    def __post_init__(self) -> None:
        # an issuer is a URL without line breaks, so the first one ends it
        name = "u-" + _digest(f"{self.issuer}\n{self.subject}".encode("utf-8", "surrogatepass"))
        owner = "o-" + _digest(msgspec.json.encode([self.issuer, self.client, self.subject]))
        msgspec.structs.force_setattr(self, "name", name if self.issuer else LOCAL_NAME)
        msgspec.structs.force_setattr(self, "owner", owner if self.issuer else LOCAL_NAME)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Principal) and self._identity == other._identity

    def __hash__(self) -> int:
        return hash(self._identity)

    @property
    def _identity(self) -> tuple[object, ...]:
        return self.issuer, self.subject, self.client, self.scopes

    @property
    def grant_key(self) -> "GrantKey":
        """Return what access depends on: when it ends, all that the principal has open ends."""
        return self.grant or (self.subject, self.client)


LOCAL_NAME = "local"
GrantKey = str | tuple[str, str]  # a grant's id; without one the subject and client of an access token


def derive_subject(issuer: str, subject: str) -> str:
    """Return the subject in our own tokens for a person of `issuer`; subjects of different issuers never collide."""
    return "p-" + _digest(msgspec.json.encode([issuer, subject]))


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:40]


LOCAL = Principal("", "", "")  # the single user over stdio and with --auth none
