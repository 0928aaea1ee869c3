"""Parse a command line: its command, options, arguments and flags."""

import pkgutil
from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any

import click
import msgspec

from toolgate.server.base.errors import UsageError
from toolgate.server.base.text import suggest
from toolgate.server.cli.parsing.command import Command, flags_of, usage
from toolgate.server.cli.parsing.commands import COMMANDS, GROUPS, INSTEAD_OF, sub_commands
from toolgate.server.config.option import CONFIG, Option
from toolgate.server.config.options import OPTIONS

EVERY = {option.flag: option for option in (*chain(*(each.flags for each in COMMANDS.values())), CONFIG, *OPTIONS)}
SHORT = {option.short: option for option in OPTIONS if option.short}
INSTEAD = {"-h": "help", "--help": "help", "-V": "version", "--version": "version"}  # flags → commands
GROUP_STARTS = [name for name in COMMANDS if sub_commands(name)]  # commands that others begin with
MAX_OWNERS = 6  # commands in one sentence


class Invocation(msgspec.Struct, frozen=True):
    """A parsed command line. `run` is as in `Command`."""

    command: Command
    run: str
    options: Mapping[str, Any]  # unparsed words
    parameters: Mapping[str, Any]  # arguments and flags, by name


def parse_words(words: Sequence[str]) -> Invocation:
    """Parse a command line, with options in any place. Raises UsageError."""
    path, options, arguments, instead = _split(words)
    if instead:
        command = COMMANDS[instead]
        return Invocation(command, command.run, {}, {"commands": path or arguments} if instead == "help" else {})
    name = " ".join(path)
    if name in GROUPS or (arguments and not path):
        raise UsageError(_explain_missing(name, arguments))
    command = COMMANDS[name or "serve"]
    if "" in arguments:
        raise UsageError(f"{command.name}: an argument is empty\nusage: {usage(command)}")
    try:
        parsed = _to_click(command).make_context("toolgate", [*options, "--", *arguments])
    except click.UsageError as error:
        raise UsageError(_explain(error, command, words)) from None
    if parsed.args and command.name in GROUP_STARTS:
        raise UsageError(_explain_missing(command.name, parsed.args))
    if parsed.args:  # an extra word after arguments may be a password: don't repeat it
        nothing_else = f"takes {' '.join(word.strip('[]') for word in command.arguments)} and nothing else"
        reason = nothing_else if command.arguments else f"unexpected {parsed.args[0]!r}"
        raise UsageError(f"{command.name}: {reason}\nusage: {usage(command)}")
    given = {key: _to_word(value) for key, value in parsed.params.items() if value not in (None, (), False)}
    own = {option.key for option in command.flags} | set(map(_argument_key, command.arguments))
    settings = {key: value for key, value in given.items() if key not in own}
    variant = next((each for each in command.variants if each.flag.key in given), None)
    if "url" in given and settings and variant is None and command.is_url_running:
        raise UsageError(f"--{next(iter(settings))} has no effect with --url, which talks to a running server")
    own -= {each.flag.key for each in command.variants if each is not variant}
    run = command.run if variant is None else variant.run
    return Invocation(command, run, settings, {key: value for key, value in parsed.params.items() if key in own})


def _split(words: Sequence[str]) -> tuple[list[str], list[str], list[str], str]:
    """Return the command's words, options with values, arguments, and a command that replaces it, as for --help."""
    path: list[str] = []
    options: list[str] = []
    arguments: list[str] = []
    instead, are_options_over = "", False
    rest = iter(words)
    for word in rest:
        if word == "--" and not are_options_over:
            are_options_over = True
        elif not are_options_over and word in INSTEAD:
            instead = instead or INSTEAD[word]
        elif not are_options_over and word.startswith("-") and word != "-":
            if word.startswith("--") and word.partition("=")[0] not in EVERY:
                raise UsageError(_explain_option(word, path))
            options.append(word[:2] + word[3:] if word[2:3] == "=" else word)  # -n=NAME is -nNAME
            if _needs_value(word, path):
                value = next(rest, None)
                if value is None or value.partition("=")[0] in EVERY or value in SHORT:
                    raise UsageError(f"{word} needs a value")
                options[-1:] = [f"{word}={value}"] if word.startswith("--") else [word, value]
        elif not arguments and {" ".join([*path, word])} & (COMMANDS.keys() | GROUPS.keys()):
            path.append(word)
        else:
            arguments.append(word)
    return path, options, arguments, instead


def _needs_value(word: str, path: Sequence[str]) -> bool:
    """Return whether the next word is this option's value: after `--port`, and after the p in `-vp`. A command's own
    flag may be a switch where an option of the same name has values."""
    if word.startswith("--"):
        command = COMMANDS.get(" ".join(path))
        own = {option.flag: option for option in command.flags} if command is not None else {}
        option = own.get(word) or EVERY.get(word)
        return option is not None and not option.is_switch
    valued = (at for at, letter in enumerate(word) if (found := SHORT.get(f"-{letter}")) and not found.is_switch)
    return next(valued, None) == len(word) - 1


def _to_click(command: Command) -> click.Command:
    options = (CONFIG, *command.options) if command.options else ()
    return click.Command(
        command.name,
        params=[*map(_to_argument, command.arguments), *map(_to_option, (*command.flags, *options))],
        add_help_option=False,
        context_settings={"allow_extra_args": True},
    )


def _to_argument(text: str) -> click.Argument:
    count = -1 if "…" in text else 1
    return click.Argument([_argument_key(text)], metavar=text, required=not text.startswith("["), nargs=count)


def _argument_key(text: str) -> str:
    """Return the key of an argument: NAME is `name`, [ARGUMENT=VALUE…] is `arguments`."""
    word = text.strip("[]…").partition("=")[0]
    return word.lower() + ("s" if "…" in text else "")


def _to_option(option: Option) -> click.Option:
    names = [option.key, option.flag, *([option.short] if option.short else [])]
    return click.Option(names, is_flag=option.is_switch or None, multiple=option.is_repeatable, metavar=option.metavar)


def _to_word(value: Any) -> Any:
    """Return a list or a word, as the environment and the file would give it."""
    return list(value) if isinstance(value, tuple) else "true" if value is True else value


# -- explaining mistakes


def _explain_missing(group: str, arguments: Sequence[str]) -> str:
    """Explain an unknown or incomplete command."""
    names = sub_commands(group)
    known = ", ".join(names)
    if not arguments:
        return f"{group}: COMMAND is missing: {known}"
    where = f"{group}: " if group else ""
    if not group and arguments[0] in INSTEAD_OF:
        return f"there is no command {arguments[0]!r}: {INSTEAD_OF[arguments[0]]}"
    return f"{where}unknown command {arguments[0]!r}{suggest(arguments[0], names)}; commands are {known}"


def _explain_option(word: str, path: Sequence[str]) -> str:
    """Explain an unknown long option: it may be a tool's argument, which has no dashes."""
    flag = word.partition("=")[0]  # the value may be a password
    near = suggest(flag[2:], (each[2:] for each in (*_flags_here(path), *INSTEAD) if each.startswith("--")), "--")
    if path == ["call"] and not near:
        example = f"{flag.lstrip('-') or 'command'}=…"
        return f"call: unknown option {flag}; a tool's arguments have no dashes: {example}"
    dashes = _explain_dashes(COMMANDS[" ".join(path)]) if " ".join(path) in COMMANDS else ""
    return f"unknown option {flag}{near}{dashes}; see toolgate {' '.join([*path, '--help'])}"


def _explain_dashes(command: Command) -> str:
    """Return how a command takes another one with its options, or ""."""
    return "; options of COMMAND stand behind --" if command.takes_command else ""


def _flags_here(path: Sequence[str]) -> list[str]:
    """Return the flags of the command, or of all commands with that first word."""
    name = " ".join(path) or "serve"
    own = [each for each in COMMANDS.values() if each.name == name or each.name.startswith(f"{name} ")]
    return [flag for command in own for flag in flags_of(command)]


def _explain_unknown(flag: str, words: Sequence[str]) -> str:
    """Explain a letter that is no option: it may stand in a word of several, or be `-help` for `--help`."""
    letter = flag.lstrip("-")
    word = next((word for word in words if word[:1] == "-" != word[1:2] and letter in word), flag)
    return f"unknown option {flag}{'' if word == flag else f' in {word}'}{suggest(f'-{word}', (*EVERY, *INSTEAD))}"


def _name_owners(flag: str) -> str:
    """Return the commands that take a flag, or "" for no option. Most take --state and --config."""
    owners = [each.name for each in COMMANDS.values() if flag in flags_of(each)]
    rest = len(owners) - MAX_OWNERS
    return ", ".join(owners if rest <= 0 else [*owners[:MAX_OWNERS], f"and {rest} more"])


def _explain(error: click.UsageError, command: Command, words: Sequence[str]) -> str:
    match error:
        case click.NoSuchOption():
            flag = error.option_name
            owners = _name_owners(flag)
            misplaced = f"{command.name}: {flag} does not belong here (it belongs to {owners})"
            text = (misplaced if owners else _explain_unknown(flag, words)) + _explain_dashes(command)
        case click.MissingParameter():
            known = ", ".join(pkgutil.resolve_name(command.choices)) if command.choices else ""
            missing = (error.param.metavar if error.param else None) or "an argument"
            listed = f"; {command.lister} lists them" if command.lister else f": {known}" if known else ""
            text = f"{command.name}: {missing} is missing{listed}"
        case click.BadOptionUsage():
            text = f"{error.option_name} takes no value"
        case _:
            text = error.message
    return f"{text}\nusage: {usage(command)}"
