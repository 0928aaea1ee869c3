"""Hold what the checks of one server have found: later checks use it."""

from typing import Any
from urllib.parse import urlunsplit

from toolgate.server.cli.doctor.remote.http import HttpProbe, ProbeResponse, get_origin
from toolgate.server.cli.doctor.report import CheckFailedError, CheckSkippedError
from toolgate.server.cli.mcp_client.http import parse_url
from toolgate.server.config.load import Config

ACCESS_NEEDED = "needs an access token in TOOLGATE_TOKEN"


class RemoteTarget:
    """The server at `url`, and what is known of it so far."""

    def __init__(self, url: str, config: Config) -> None:
        parts = parse_url(url)
        self.url = url if parts.path.strip("/") else urlunsplit((parts.scheme, parts.netloc, "/mcp", "", ""))
        self.parts = parse_url(self.url)
        self.probe = HttpProbe(self.url)
        self.token = config.access_token
        self.first_response: ProbeResponse | None = None  # the first response
        self.unauthorized_response: ProbeResponse | None = None  # to a call without a token
        self.is_toolgate = False  # whether a Toolgate answers
        self.challenge: dict[str, str] = {}
        self.resource_metadata: dict[str, Any] = {}
        self.issuer = ""
        self.server_metadata: dict[str, Any] = {}
        self.cors_documents: list[tuple[str, ProbeResponse]] = []  # documents that pages may read
        self.client_id = ""
        self.registration: dict[str, Any] = {}
        self.auth_headers: dict[str, str] = {}  # of a first call that was answered
        self.session_headers: dict[str, str] = {}  # those, and the headers of the session it began

    @property
    def public_url(self) -> str:
        """Return the public URL that the server must have."""
        return self.url.rstrip("/").removesuffix("/mcp").removesuffix("/sse")

    @property
    def port(self) -> int:
        return self.parts.port or (443 if self.parts.scheme == "https" else 80)

    def own_remedy(self, remedy: str) -> str:
        """Return `remedy`, unless an outside issuer answered."""
        if get_origin(self.issuer) == get_origin(self.url):
            return remedy
        return f"look at {self.issuer} and its log: that server refuses, not this one"

    def require_https(self, what: str, told: object) -> None:
        """Raise CheckFailedError where a server behind https names an http URL: others could read along."""
        if self.parts.scheme == "https" and isinstance(told, str) and told.startswith("http://"):
            raise CheckFailedError(
                f"{what} is told as http: {told}",
                f"start the server with --public-url {self.public_url}: it can't see TLS that ends in front of it",
            )

    def require_token(self) -> None:
        """Raise CheckSkippedError without a token that works."""
        if not self.token:
            raise CheckSkippedError(f"not checked: {ACCESS_NEEDED}")
        if not self.auth_headers:
            raise CheckSkippedError("not checked: needs first call")

    def require_session(self) -> None:
        """Raise CheckSkippedError without a session."""
        self.require_token()
        if not self.session_headers:
            raise CheckSkippedError("not checked: needs a session of the first call")
