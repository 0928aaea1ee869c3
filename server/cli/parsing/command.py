"""Define one command of the command line, and what options several commands take.

Flags belong to one command; options can also be set by a variable or a key of the config file.
"""

from collections.abc import Mapping, Sequence

import msgspec

from toolgate.server.config.option import CONFIG, Opened, Option
from toolgate.server.config.options import OPTIONS
from toolgate.server.config.types import parse_bool


class Command(msgspec.Struct, frozen=True):
    """One command. `run` is `module:function` of `toolgate.server`. It gets the options, if the command takes or reads
    any, and arguments and flags by name, and returns the exit code, or a coroutine for it.

    reads_config: whether the command reads the config and the environment, also without options of its own
    usage: the arguments: NAME, optional [NAME], repeated NAME…
    choices: `module:NAME`, a table of what the one argument may be, each with a title
    lister: the command that lists what the first argument may be
    variants: flags that have another function run the command; they are among its flags
    is_url_running: whether a flag --url names a running server, for which the options have no effect
    """

    name: str
    summary: str
    run: str
    options: tuple[Option, ...] = ()
    usage: str = ""
    flags: tuple[Option, ...] = ()
    choices: str = ""
    lister: str = ""
    example: str = ""
    variants: "tuple[Variant, ...]" = ()
    is_url_running: bool = True
    reads_config: bool = False

    @property
    def arguments(self) -> tuple[str, ...]:
        return tuple(self.usage.split())

    @property
    def takes_config(self) -> bool:
        return bool(self.options) or self.reads_config

    @property
    def takes_command(self) -> bool:
        """Return whether the last arguments are another command, which may have options of its own."""
        return len(self.arguments) > 1 and self.arguments[-1] == "[COMMAND…]"


class Variant(msgspec.Struct, frozen=True):
    """A flag of a feature that has another function run a command of the core. `run` is as in `Command`.

    options: further options of the command
    summary, example: replace those of the command, if not ""
    """

    command: str
    flag: Option
    run: str
    options: tuple[Option, ...] = ()
    summary: str = ""
    example: str = ""


class FeatureCommands(msgspec.Struct, frozen=True):
    """What a feature adds to the command line.

    groups: first words of commands that are no command of their own, and what these commands are about
    overview: lines of the overview: first words of commands, and what they do on one line of 80 columns
    instead: words that people try, each with what to type
    is_first: whether its lines are the first of the overview
    """

    commands: tuple[Command, ...] = ()
    variants: tuple[Variant, ...] = ()
    groups: Mapping[str, str] = {}
    overview: Mapping[str, str] = {}
    instead: Mapping[str, str] = {}
    is_first: bool = False


def pick_options(*names: str, opens: Sequence[Opened] = ()) -> tuple[Option, ...]:
    """Return the server's options of these names, and those that help to open what the command opens. One of a feature
    that is not there is left out."""
    return tuple(option for option in OPTIONS if option.name in names or option.opens in opens)


STATE = pick_options("state")
SPAWNING = tuple(option for option in OPTIONS if not option.is_http_only)  # options of a server over stdio
URL = Option("url", "use the server at this URL, as toolgate login or TOOLGATE_TOKEN allows", metavar="URL")
JSON = Option("json", "print one JSON object, for programs", parse_bool)
JSON_LINES = Option("json", "print a JSON object on each line, for programs", parse_bool)


def flags_of(command: Command) -> list[str]:
    """Return all flags that a command takes, short ones too."""
    taken = (*command.flags, *((CONFIG, *command.options) if command.options else ()))
    return [flag for option in taken for flag in (option.flag, option.short) if flag]


def usage(command: Command) -> str:
    """Return the command's usage on one line."""
    name = () if command.name == "serve" else (command.name,)
    return " ".join(("toolgate", *name, *command.arguments, *(["[OPTIONS]"] if flags_of(command) else [])))
