"""Define one option: its flag, environment variable, key of the config file and help."""

import re
from collections.abc import Callable
from typing import Any, Literal

import msgspec

from toolgate.server.config.types import parse_bool, parse_path

# Items of an environment list with colons: a URL, [an address], an IPv6 network, host:port
URL = r"(?:[A-Za-z0-9+.-]+=)?[A-Za-z][A-Za-z0-9+.-]*://(?:\[[^\]]*\]|[^/:]*)(?::[0-9]{1,5}(?![^/:]))?(?:/[^:]*)?"
BRACKETED_IPV6 = r"\[[^\]]*\](?::[0-9]+)?"
IPV6 = r"(?:[0-9A-Fa-f]{0,4}:){2,7}[0-9A-Fa-f]{0,4}(?:/[0-9]+)?"
HOST_AND_PORT = r"[^:/]+:[0-9]{1,5}"


Opened = Literal["state", "keys"]
SERVER, NODE, BOTH = "server", "node", "both"  # places of options: a node's is refused beside --node


class Option(msgspec.Struct, frozen=True):
    """One option.

    parse: converts a word to the value, and raises ValueError
    default: the value without one; () makes it a list
    metavar: None makes it a switch
    is_secret: whether it names a file with a secret, which is hidden from commands
    opens: what it helps to open: each command that opens that takes it
    place: whose option it is where commands run at a node
    item_pattern: matches list items with a colon
    splitter: splits an environment list in another way
    """

    name: str
    help: str
    parse: Callable[[str], Any] = str
    default: Any = None
    metavar: str | None = None
    short: str | None = None
    is_http_only: bool = False
    is_planned: bool = False
    is_secret: bool = False
    opens: Opened | None = None
    place: str = SERVER
    item_pattern: str = r"(?!)"
    splitter: Callable[[str], list[str]] | None = None

    @property
    def flag(self) -> str:
        return "--" + self.name

    @property
    def spelling(self) -> str:
        """Return the flags as help shows them: `-l, --logs DIR`."""
        return ", ".join(filter(None, (self.short, self.flag))) + (f" {self.metavar}" if self.metavar else "")

    @property
    def full_help(self) -> str:
        return f"{self.help}; repeatable" if self.is_repeatable else self.help

    def with_note(self, note: str) -> "Option":
        """Return the option with a note at the end of its help, if there is one."""
        return msgspec.structs.replace(self, help=f"{self.help}; {note}") if note else self

    @property
    def key(self) -> str:
        return self.name.replace("-", "_")

    @property
    def variable(self) -> str:
        return "TOOLGATE_" + self.key.upper()

    @property
    def is_switch(self) -> bool:
        return self.parse is parse_bool

    @property
    def is_repeatable(self) -> bool:
        return isinstance(self.default, tuple)

    def split_variable(self, word: str) -> list[str]:
        """Return the items of an environment list. ":" separates folders, as in PATH. Other lists are separated by
        commas and white space, or else by ":" outside of URLs, IPv6 addresses and host:port."""
        if self.splitter is not None:
            return self.splitter(word)
        if self.parse is parse_path:
            return word.split(":")
        if re.search(r"[,\s]", word):
            return [piece for piece in re.split(r"[,\s]+", word) if piece]
        item = rf"(?:^|:)({self.item_pattern}|{URL}|{BRACKETED_IPV6}|{IPV6}|{HOST_AND_PORT}|[^:]*)(?=:|$)"
        return [piece for piece in re.findall(item, word) if piece]


CONFIG = Option("config", "config file (TOML)", metavar="FILE")  # not in the table: it locates the others
