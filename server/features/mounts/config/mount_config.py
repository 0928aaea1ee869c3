"""Hold what the config file says of one mounted server."""

from collections.abc import Mapping
from pathlib import Path
from typing import Literal

import msgspec

from toolgate.tools.api.scopes import PLUGINS

Sharing = Literal["person", "session", "all"]
Era = Literal["auto", "legacy", "modern"]
Auth = Literal["", "oauth", "client_credentials", "exchange"]
OnChange = Literal["hold", "warn", "allow"]

TIMEOUT = 60.0


class MountLimits(msgspec.Struct, frozen=True):
    """What one person may do with a mount; 0 is no limit. `calls`: in any minute, `at_once`: under way."""

    calls: int = 0
    at_once: int = 0


class MountPath(msgspec.Struct, frozen=True):
    """A file or folder that a command sees beside its workspace."""

    path: Path
    is_writable: bool = False


class MountConfig(msgspec.Struct, frozen=True, kw_only=True):
    """One `[mounts.NAME]`: a `command` or a `url`.

    network: the hosts that the command reaches; None: those of the person's shell
    files: what it sees beside what the person's shell does
    args, cwd, env: of the command; `env` is all it has beside PATH, HOME and the language
    headers: of each request to the URL
    is_sse: whether the URL is one of HTTP+SSE, which is otherwise found out
    tools: patterns of the tools, prompts and resources that are served; "!" leaves out
    read_only: patterns of the tools that the operator says change nothing
    prefix: before each name
    scope: the OAuth scope that a call needs
    per: who shares an upstream session; None: as the transport wants it
    timeout: seconds for a call that is not held
    protocol: which era is spoken with it
    limits: for each person
    asks_one: whether calls come one at a time, so that its questions are known to be of one call
    needs_own_secrets: whether the team's secrets do not count
    auth: how requests to the URL get a token: "oauth" where each person signs in there, "client_credentials" for this
        server itself, "exchange" for what a person's identity provider says of them
    client_id, client_secret: of this server there, if its operator has registered one
    token_url: where tokens are given; "": as the server of the URL says
    scopes: to ask for, in place of those that the server names
    audience: what a token of `token_url` is for, None: the URL; without one, the issuer of the authorization server
    refresh_retry: whether the server takes a refresh twice whose answer was lost
    on_change: what becomes of what is new or changed in its lists; None: as the transport wants it

    The values of `env` and `headers`, `url` and `client_secret`, name secrets as `${secret:NAME}` until the mount is
    opened.
    """

    name: str
    command: str = ""
    args: tuple[str, ...] = ()
    cwd: Path | None = None
    env: Mapping[str, str] = {}
    network: tuple[str, ...] | None = None
    files: tuple[MountPath, ...] = ()
    url: str = ""
    headers: Mapping[str, str] = {}
    is_sse: bool = False
    tools: tuple[str, ...] = ()
    read_only: tuple[str, ...] = ()
    prefix: str = ""
    scope: str = PLUGINS
    per: Sharing | None = None
    timeout: float = TIMEOUT
    protocol: Era = "auto"
    limits: MountLimits = MountLimits()
    asks_one: bool = False
    needs_own_secrets: bool = False
    auth: Auth = ""
    client_id: str = ""
    client_secret: str = ""
    token_url: str = ""
    scopes: tuple[str, ...] = ()
    audience: str | None = None
    refresh_retry: bool = False
    on_change: OnChange | None = None

    @property
    def is_personal(self) -> bool:
        """Whether each person has a token of their own."""
        return self.auth in ("oauth", "exchange")

    @property
    def fills_client_secret(self) -> bool:
        """Whether the client's secret is that of whoever calls: where people sign in, it is the team's."""
        return self.auth in ("client_credentials", "exchange")
