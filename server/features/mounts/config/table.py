"""Read the tables `[mounts.NAME]` of a config file.

A mount with a fault is left out, and the others are served: one slip must not stop the server.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import msgspec

from toolgate.server.base.errors import UsageError
from toolgate.server.base.text import suggest
from toolgate.server.config.load import Config, read_tables
from toolgate.server.features.mounts.config import access, authorization, secret_references, values
from toolgate.server.features.mounts.config.faults import FaultCode, MountFault, MountValueError
from toolgate.server.features.mounts.config.mount_config import MountConfig
from toolgate.server.features.mounts.config.placeholders import (
    expand_placeholders,
    expand_url,
    expand_variables,
)

NAME = re.compile(r"[a-z][a-z0-9-]{0,15}")
NAME_RULE = "a name is a small letter and up to 15 small letters, digits and -"
SSE = "sse"
TYPES = ("stdio", "http", "streamable-http", "streamableHttp", SSE)
ONE = "one"  # call at a time
OWN = "own"  # secrets alone
ALL = "all"

Reader = Callable[[Any], Any]
OF_COMMAND: Mapping[str, Reader] = {
    "command": values.read_command,
    "args": values.read_arguments,
    "cwd": values.read_folder,
    "env": values.read_environment,
    "network": access.read_network,
    "files": access.read_files,
}
OF_URL: Mapping[str, Reader] = {"url": values.read_url, "headers": values.read_headers}
READERS: Mapping[str, Reader] = {
    **OF_COMMAND,
    **OF_URL,
    "type": values.read_word(*TYPES),
    "tools": values.read_patterns,
    "read_only": values.read_patterns,
    "prefix": values.read_prefix,
    "scope": values.read_scope,
    "per": values.read_word("person", "session", ALL),
    "timeout": values.read_seconds,
    "limits": values.read_limits,
    "protocol": values.read_word("auto", "legacy", "modern"),
    "ask": values.read_word("newest", ONE),
    "secrets": values.read_word("shared", OWN),
    "auth": values.read_word(*authorization.KEYS),
    "client_id": values.read_client_id,
    "client_secret": values.read_text,
    "token_url": values.read_token_url,
    "scopes": values.read_scopes,
    "audience": values.read_audience,
    "refresh_retry": values.read_truth,
    "on_change": values.read_word("hold", "warn", "allow"),
}


class MountList(msgspec.Struct, frozen=True):
    """What a config file says of mounts: those to serve, in its order, and why others are not served."""

    mounts: tuple[MountConfig, ...] = ()
    faults: tuple[MountFault, ...] = ()


def check_mounts(config: Config) -> None:
    """Raise UsageError where the table can't be read. A fault in one mount is none of these."""
    read_own_mounts(config)


def read_own_mounts(config: Config) -> MountList:
    """Return the mounts of the config file, as it was at the start. Raises UsageError."""
    return _check(config, read_mounts(config.mounts, str(config.config_path), config.environment))


def read_current_mounts(config: Config) -> MountList:
    """Return the mounts of the config file as it is now; one that was removed has none. Raises UsageError."""
    table = read_tables(config.config_path).get("mounts", {})
    return _check(config, read_mounts(table, str(config.config_path), config.environment))


def _check(config: Config, found: MountList) -> MountList:
    """Return the mounts without those whose `files` would show what is the server's own."""
    exposing = {
        mount.name: fault
        for mount in found.mounts
        if (fault := access.find_exposed(config, mount) or access.find_replaceable(mount, found.mounts))
    }
    if not exposing:
        return found
    faults = [
        MountFault(name, "CONFIG_VALUE", f"{config.config_path}: [mounts.{name}] files: {fault}")
        for name, fault in exposing.items()
    ]
    return MountList(tuple(each for each in found.mounts if each.name not in exposing), (*found.faults, *faults))


def read_mounts(table: Mapping[str, Any], place: str, environment: Mapping[str, str]) -> MountList:
    """Return the mounts in the table `mounts` of the file at `place`, with variables of the server's environment.

    Raises UsageError for a table that has no names.
    """
    mounts: list[MountConfig] = []
    faults: list[MountFault] = []
    for name, rows in table.items():
        if not isinstance(rows, dict):
            raise UsageError(
                f"{place}: [mounts] has no {name!r} of its own: each server has a name, so write [mounts.NAME] above "
                "its lines"
            )
        found = read_mount(name, rows, place, environment)
        if isinstance(found, MountConfig):
            mounts.append(found)
        else:
            faults += found
    return MountList(tuple(mounts), tuple(faults))


def read_mount(
    name: str, rows: Mapping[str, Any], place: str, environment: Mapping[str, str]
) -> MountConfig | list[MountFault]:
    """Return one mount, or all its faults."""
    given: dict[str, Any] = {}
    faults: list[tuple[FaultCode, str]] = list(_find_faults(name, rows))
    for key, value in rows.items():
        if key not in READERS:
            continue
        try:
            given[key] = READERS[key](_expand(key, value, environment))
        except MountValueError as error:
            faults.append((error.code, f" {key}: {error}"))
        except ValueError as error:
            faults.append(("CONFIG_VALUE", f" {key}: {error}"))
    if faults:
        shown = name if NAME.fullmatch(name) else repr(name)
        return [MountFault(name, code, f"{place}: [mounts.{shown}]{text}") for code, text in faults]
    is_sse, asks_one = given.pop("type", None) == SSE, given.pop("ask", None) == ONE
    needs_own = given.pop("secrets", None) == OWN
    fields: dict[str, Any] = {"prefix": f"{name}__", **given}
    return MountConfig(name=name, is_sse=is_sse, asks_one=asks_one, needs_own_secrets=needs_own, **fields)


def _find_faults(name: str, rows: Mapping[str, Any]) -> Iterator[tuple[FaultCode, str]]:
    """Yield what is wrong with the name and the keys, whatever their values."""
    if not NAME.fullmatch(name):
        yield "CONFIG_NAME", f": {NAME_RULE}"
    for key in rows:
        if key not in READERS:
            yield "CONFIG_UNKNOWN_KEY", f": unknown key {key!r}{suggest(key, READERS)}"
    if "command" in rows and "url" in rows:
        yield "CONFIG_TWO_SERVERS", ": command and url name two servers: remove one"
    elif "command" in rows or "url" in rows:
        yield from _find_misplaced(rows)
        yield from _find_idle_secrets(rows)
        yield from authorization.find_auth_faults(rows)
    elif not any(key not in READERS and suggest(key, ("command", "url")) for key in rows):
        yield "CONFIG_NO_SERVER", ': command or url is missing, such as command = "npx"'


def _find_misplaced(rows: Mapping[str, Any]) -> Iterator[tuple[FaultCode, str]]:
    """Yield the keys that belong to the other kind of server."""
    own, others = ("command", OF_URL) if "command" in rows else ("url", OF_COMMAND)
    for key in others:
        if key in rows:
            yield "CONFIG_VALUE", f" {key}: has no effect beside {own}: remove it"
    kind = rows.get("type")
    if kind in TYPES and (kind == "stdio") != (own == "command"):
        rule = "a command speaks stdio" if own == "command" else "a URL speaks http or sse"
        yield "CONFIG_VALUE", f" type: {rule}: remove type"


def _find_idle_secrets(rows: Mapping[str, Any]) -> Iterator[tuple[FaultCode, str]]:
    """Yield why what is said of secrets has no effect."""
    if "secrets" not in rows:
        return
    if rows.get("per") == ALL and rows["secrets"] == OWN:
        yield "CONFIG_VALUE", ' secrets: own can be nobody\'s where per is "all": remove one of the two'
    elif not secret_references.find_names(secret_references.list_texts(rows)):
        yield "CONFIG_VALUE", " secrets: has no effect where no ${secret:NAME} is named: remove it"


def _expand(key: str, value: Any, environment: Mapping[str, str]) -> Any:
    """Return the value of a key with the variables in it. Raises MountValueError."""
    if key == "client_secret" and isinstance(value, str):
        return expand_placeholders(value, environment)
    if key in ("env", "headers") and isinstance(value, dict):
        return {name: _expand_named(name, text, environment) for name, text in value.items()}
    if key in ("url", "client_id", "token_url", "audience") and isinstance(value, str):
        return expand_url(value, environment)
    if key in OF_COMMAND:
        return _expand_words(value, environment)
    return value


def _expand_words(value: Any, environment: Mapping[str, str]) -> Any:
    """Return a text, or a list of texts, with the variables in it; another value as it is."""
    if isinstance(value, list):
        return [_expand_words(each, environment) for each in value]
    return expand_variables(value, environment) if isinstance(value, str) else value


def _expand_named(name: str, text: Any, environment: Mapping[str, str]) -> Any:
    try:
        return expand_placeholders(text, environment) if isinstance(text, str) else text
    except MountValueError as error:
        raise MountValueError(f"{name}: {error}", error.code) from None
