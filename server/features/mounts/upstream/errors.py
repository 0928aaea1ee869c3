"""Name what can go wrong with a mounted server: a code, which docs/gateway.md explains, and a sentence."""

from collections.abc import Collection, Iterable, Mapping
from typing import Any

import msgspec

from toolgate.server.base.text import list_texts
from toolgate.tools.api.errors import ToolError

LOOP = "LOOP"  # also in the data of the refusal of a server that finds itself on the path
CODES: Mapping[str, str] = {  # what each means, as in docs/gateway.md
    LOOP: "it leads back to this server",
    "NOT_STARTED": "the program is not there, can't be started, or is one too many for the person's limits",
    "NOT_CONFINED": "no sandbox holds it to its network or files: use --sandbox bwrap",
    "SECRETS_EXPOSED": "its variables could be read by other commands: use a sandbox",
    "SECRET_MISSING": "nobody has set a secret that it names, or you have not set your own; the text says where",
    "SECRET_UNFIT": "a secret can't stand where it is named: in a header it must be of printable ASCII on one line",
    "SECRET_UNREADABLE": "the key that sealed a secret was lost, or the state can't be read: set it again",
    "STDIO_EXITED_BEFORE_INITIALIZE": "it ended before it answered; the text has its exit code and last words",
    "STDIO_EXITED": "it ended, or closed its output",
    "STDIO_CLOSED": "it ended, or closed its output",
    "CONNECT_FAILED": "there is no connection to the URL, or it broke",
    "CONNECTION_LOST": "there is no connection to the URL, or it broke",
    "HTTP_STATUS": "what answers at the URL is no MCP server",
    "NOT_MCP": "what answers at the URL is no MCP server",
    "SIGN_IN_REQUIRED": "the person has to sign in there, and the text has the link; or it wants an Authorization "
    "header",
    "IDENTITY_MISSING": "the person has to sign in here with the identity provider",
    "TOKEN_REFUSED": "its authorization server gives no token, or the server does not take the one that it gives; "
    "the text says why",
    "DISCOVERY_FAILED": "its documents name no authorization server to which people can be sent; the text says why",
    "CLIENT_REFUSED": "its authorization server registers no client for Toolgate: give the mount a client_id",
    "SIGN_IN_REFUSED": "the person did not allow it there, or the authorization server sent an error: connect again",
    "SIGN_IN_MIXED_UP": "the answer to a sign-in came from another server than it began at: connect again, and "
    "tell the operator",
    "SIGN_IN_OVER": "a sign-in is over, was used, or is another person's: connect again on the first page",
    "SIGN_IN_BUSY": "too many people sign in at once: try again soon",
    "NOT_MOUNTED": "no mounted server of this name has people sign in: look at the first page",
    "REDIRECTED": "redirects are not followed: write the URL that it names, if you trust it",
    "INITIALIZE_TIMEOUT": "it did not begin a conversation within a minute, or refused to",
    "INITIALIZE_REFUSED": "it did not begin a conversation within a minute, or refused to",
    "LIST_FAILED": "it can't say what it has; the last good lists stay",
    "CALL_TIMEOUT": "the call took longer than timeout",
    "MAY_HAVE_RUN": "it failed during a call, which is not sent again unless the tool calls itself read-only or "
    "idempotent",
    "TOO_LARGE": "it sent what is no message, or more than 32 MiB",
    "BAD_MESSAGE": "it sent what is no message, or more than 32 MiB",
    "BACKING_OFF": "it failed a moment ago, and is tried again soon",
    "LIMITED": "the person has reached a limit of the mount; the text says when the next call may be made",
    "HELD": "the tool, prompt, resource or skill is new or has changed since it was approved: toolgate mount review",
    "QUESTION_EXPIRED": "the answer to a question came too late, or twice",
    "SESSION_EXPIRED": "it forgot the conversation twice in a row",
    "SWITCHED_OFF": "the person has switched it off for themselves, on the first page",
    "CHOICES_UNREADABLE": "what the person has switched off can't be read, so nothing of mounted servers is "
    "served to them: try again soon, or look at the log",
}


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


def find_repeated(value: Any, secrets: Iterable[str]) -> Collection[str]:
    """Return those of the values that a JSON value repeats."""
    known = {secret for secret in secrets if len(secret) >= MIN_SECRET}
    text = "\0".join(list_texts(value)) if known else ""
    return [secret for secret in known if secret in text]


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
