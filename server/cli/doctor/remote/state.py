"""What is known of one way while it is walked: what a link finds, the later ones use."""

from typing import Any
from urllib.parse import urlunsplit

from toolgate.server.cli.doctor.remote.http import Got, Wire, origin_of
from toolgate.server.cli.doctor.report import Broken, Skipped
from toolgate.server.cli.mcp_client.http import checked
from toolgate.server.config.load import Config

ONCE_SIGNED_IN = "needs an access token in TOOLGATE_TOKEN"


class Way:
    """The way to `url`."""

    def __init__(self, url: str, config: Config) -> None:
        parts = checked(url)
        self.url = url if parts.path.strip("/") else urlunsplit((parts.scheme, parts.netloc, "/mcp", "", ""))
        self.parts = checked(self.url)
        self.wire = Wire(self.url)
        self.token = config.token
        self.met: Got | None = None  # the first answer
        self.refused: Got | None = None  # to who has no token
        self.is_ours = False  # whether a Toolgate answers
        self.challenge: dict[str, str] = {}
        self.resource: dict[str, Any] = {}
        self.issuer = ""
        self.server: dict[str, Any] = {}
        self.shared: list[tuple[str, Got]] = []  # documents that pages may read
        self.client = ""
        self.registered: dict[str, Any] = {}
        self.signed_in: dict[str, str] = {}  # the headers of somebody whose first call was answered
        self.session: dict[str, str] = {}  # those, and what belongs to the session it began

    @property
    def base(self) -> str:
        """The public URL as it has to be for this way."""
        return self.url.rstrip("/").removesuffix("/mcp").removesuffix("/sse")

    @property
    def port(self) -> int:
        return self.parts.port or (443 if self.parts.scheme == "https" else 80)

    def own(self, remedy: str) -> str:
        """`remedy`, unless it is an outside issuer that answered."""
        if origin_of(self.issuer) == origin_of(self.url):
            return remedy
        return f"look at {self.issuer} and its log: it is not this server that refuses"

    def encrypted(self, what: str, told: object) -> None:
        """Raise Broken where who came by https is told of http: whoever goes there is heard by anybody."""
        if self.parts.scheme == "https" and isinstance(told, str) and told.startswith("http://"):
            raise Broken(
                f"{what} is told as http: {told}",
                f"start the server with --public-url {self.base}: TLS ends in front of it, and it can't know",
            )

    def wants_token(self) -> None:
        """Raise Skipped where nobody is signed in."""
        if not self.token:
            raise Skipped(f"not checked: {ONCE_SIGNED_IN}")
        if not self.signed_in:
            raise Skipped("not checked: needs first call")

    def wants_session(self) -> None:
        """Raise Skipped where there is none."""
        self.wants_token()
        if not self.session:
            raise Skipped("not checked: needs a session of the first call")
