"""Name what can go wrong with a mounted server: a code, which docs/gateway.md explains, and a sentence."""

from collections.abc import Iterable
from typing import Any

import msgspec

from toolgate.tools.api.errors import ToolError

LOOP = "LOOP"  # also in the data of the refusal of a server that finds itself on the path
CODES = (
    LOOP,
    "NOT_STARTED",
    "NOT_CONFINED",
    "SECRETS_EXPOSED",
    "SECRET_MISSING",
    "SECRET_UNFIT",
    "SECRET_UNREADABLE",
    "STDIO_EXITED_BEFORE_INITIALIZE",
    "STDIO_EXITED",
    "STDIO_CLOSED",
    "CONNECT_FAILED",
    "CONNECTION_LOST",
    "HTTP_STATUS",
    "NOT_MCP",
    "SIGN_IN_REQUIRED",
    "IDENTITY_MISSING",
    "TOKEN_REFUSED",
    "REDIRECTED",
    "INITIALIZE_TIMEOUT",
    "INITIALIZE_REFUSED",
    "LIST_FAILED",
    "CALL_TIMEOUT",
    "MAY_HAVE_RUN",
    "TOO_LARGE",
    "BAD_MESSAGE",
    "BACKING_OFF",
    "LIMITED",
    "HELD",
    "QUESTION_EXPIRED",
    "SESSION_EXPIRED",
)


MIN_SECRET = 6  # characters; shorter values are words, and no keys


class MountError(ToolError):
    """A mounted server failed. `code` is one of CODES; `sentence` says what happened and what helps."""

    def __init__(self, code: str, sentence: str) -> None:
        assert code in CODES
        super().__init__(f"{code}: {sentence}")
        self.code = code
        self.sentence = sentence

    @property
    def fault(self) -> "UpstreamFault":
        """What can be kept of the error: its traceback holds the arguments of a call."""
        return UpstreamFault(self.code, self.sentence)


def hide_secrets(text: str, secrets: Iterable[str]) -> str:
    """Return a mounted server's own words without the values that the operator gave it: they go to clients and logs."""
    for secret in sorted(secrets, key=len, reverse=True):
        if len(secret) >= MIN_SECRET:
            text = text.replace(secret, "…")
    return text


class UpstreamFault(msgspec.Struct, frozen=True):
    """Why a mounted server fails, to be raised whenever somebody asks for it."""

    code: str
    sentence: str

    def create_error(self) -> MountError:
        return MountError(self.code, self.sentence)


class UpstreamRefusal(msgspec.Struct, frozen=True):
    """An error of JSON-RPC, as the mounted server wrote it."""

    code: int
    message: str
    data: Any = None

    def create_error(self) -> "UpstreamRefusedError":
        return UpstreamRefusedError(self)


class UpstreamRefusedError(Exception):
    """The mounted server answered a request with an error of JSON-RPC."""

    def __init__(self, refusal: UpstreamRefusal) -> None:
        super().__init__(refusal.message)
        self.refusal = refusal
