"""The authorization server without HTTP: what it is asked, and what it answers. Knows no route, cookie or page.

    asked = await authorization.ask(query, address)               # GET /authorize → Question | Redirect | Mistake
    question = await authorization.question(asked.id)             # for the consent page; None once answered or expired
    outcome = await authorization.answer(asked.id, person, scopes)  # → Redirect | Mistake
    answer = await authorization.token(form, headers, address)    # POST /token → Answer
    still = await authorization.standing(rights)                  # which grants may go on

Every request is one transaction; what must be fetched (a client's metadata document, its keys, those of an
identity provider) is fetched before it begins. Error descriptions are fixed sentences: nothing a caller sent is
ever echoed in one.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from toolgate.server.auth.clients.model import OAuthClient
from toolgate.server.auth.clients.redirect_uris import display_host
from toolgate.server.auth.grants import GrantSummary
from toolgate.server.auth.oauth_server.advice import Advice

if TYPE_CHECKING:
    from toolgate.server.auth.oauth_server.service import AuthorizationService

__all__ = [
    "AuthorizationErrorPage",
    "AuthorizationService",
    "ConsentRequest",
    "FormPairs",
    "GrantSummary",
    "OAuthResponse",
    "Redirect",
]

FormPairs = list[tuple[str, str]]  # the pairs of a urlencoded body, in order, repeated ones too


@dataclass(frozen=True, slots=True)
class ConsentRequest:
    """What a person is to be asked, for the consent page. Answered once, within ten minutes.

    `scopes` is what was asked and is served, in the order they are shown; with none asked, all that are served.
    `resource` is the canonical one. `client` says who asks: `.name`, `.id`, `.kind`, `.host` (None: nobody vouches
    for the name), `.loopback_only`.
    """

    id: str
    client: OAuthClient
    redirect_uri: str
    scopes: tuple[str, ...]
    resource: str
    state: str | None
    expires_at: float  # seconds since the epoch

    @property
    def redirect_host(self) -> str:
        """Where the code goes, as a person reads it: a host with its port, or a scheme's own application."""
        return display_host(self.redirect_uri)


@dataclass(frozen=True, slots=True)
class Redirect:
    """Send the browser to `location` (302; 303 after a POST). It carries `iss`, and `state` where one came.

    `host`: where that is, to be named on a page first, with what is wrong: whoever registers could send people on from
    here by a link otherwise. "" where a person has answered, or the operator vouches for the client.
    """

    location: str
    host: str = ""
    description: str = ""


@dataclass(frozen=True, slots=True)
class AuthorizationErrorPage:
    """Show a page and redirect nowhere: who asks, or where the answer would go, can't be trusted.

    `document`: the URL of the metadata document that the client named, where that is at fault; `advice`: what to do.
    """

    error: str
    description: str
    status: int = 400
    document: str = ""
    advice: Advice | None = None


@dataclass(frozen=True, slots=True)
class OAuthResponse:
    """A JSON answer. `headers` are those beside Content-Type; no member of `body` is null."""

    status: int
    body: dict[str, Any]
    headers: Mapping[str, str] = field(default_factory=dict[str, str])


def __getattr__(name: str) -> Any:
    """`AuthorizationService`, loaded when it is asked for: Authlib and SQLAlchemy are slow to import."""
    if name == "AuthorizationService":
        from toolgate.server.auth.oauth_server.service import AuthorizationService

        return AuthorizationService
    raise AttributeError(name)
