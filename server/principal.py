"""Who calls. Knows nothing of tokens: whoever verified one says what was in it."""

import hashlib
from dataclasses import dataclass, field

import msgspec


@dataclass(frozen=True, slots=True)
class Principal:
    """A person, or a client that speaks for itself, as one issuer knows them; `client` is what they call through.

    `scopes` is what they may do here; None is everything (over stdio, and with `--auth none`). `name` names folders and
    rows: those of (issuer, subject). `owner` is what sessions, streams and sealed state are bound to: (issuer, client,
    subject). Neither holds a word that came from outside, so that both may be paths and appear in a log. `until` is
    when what they called with ends, in seconds since 1970, where nothing but its end can be known of it. `grant` is
    the id of the grant of ours that the token came of, "" where there is none; `granted` is its scopes, where the
    client has asked for fewer in the token.
    """

    issuer: str
    subject: str
    client: str
    scopes: frozenset[str] | None = None
    until: float | None = field(default=None, compare=False)
    grant: str = field(default="", compare=False)
    grant_scopes: frozenset[str] | None = field(default=None, compare=False)
    name: str = field(init=False)
    owner: str = field(init=False)

    def __post_init__(self) -> None:
        # an issuer is a URL and has no line break, so that the first one ends it
        name = "u-" + _digest(f"{self.issuer}\n{self.subject}".encode("utf-8", "surrogatepass"))
        owner = "o-" + _digest(msgspec.json.encode([self.issuer, self.client, self.subject]))
        object.__setattr__(self, "name", name if self.issuer else LOCAL_NAME)
        object.__setattr__(self, "owner", owner if self.issuer else LOCAL_NAME)

    @property
    def grant_key(self) -> "GrantKey":
        """What lets them come: with it ends what they have open."""
        return self.grant or (self.subject, self.client)


LOCAL_NAME = "local"
GrantKey = str | tuple[str, str]  # a grant's id; or subject and client, as access tokens name them, where there is none


def derive_subject(issuer: str, subject: str) -> str:
    """The subject in tokens of our own for a person that `issuer` knows: no two issuers' people are ever the same."""
    return "p-" + _digest(msgspec.json.encode([issuer, subject]))


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:40]


LOCAL = Principal("", "", "")  # the one user over stdio and with --auth none
