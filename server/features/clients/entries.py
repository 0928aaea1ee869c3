"""Add this server to a client's own file, and remove it again, so that all else in the file stays as it is."""

import difflib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from toolgate.server.base.text import escape_unprintable
from toolgate.server.config.files import jsonc, toml_table
from toolgate.server.config.files.config_file import ConfigFile, ConfigFileError
from toolgate.server.config.files.jsonc import ConfigSyntaxError
from toolgate.server.features.clients.clients import NAME, TOML_COMMENTS, ClientEntry, ClientSpec
from toolgate.server.features.clients.snippets import NOTATIONS
from toolgate.tools.api.installation import COMMANDS

URL_KEYS = ("url", "serverUrl", "httpUrl")
SERVER_KEYS = ("type", "source", "command", "args", *URL_KEYS, "required")  # that say which server
SECRET_KEYS = (  # that the server at the URL gets
    *("headers", "headersHelper", "http_headers", "env_http_headers", "bearer_token_env_var"),
    *("auth", "oauth", "authProviderType"),
)
HIDDEN = "…"  # instead of a value that may be a secret
BYTE_ORDER_MARK = "\ufeff"  # Windows editors write it; Claude Code and TOML can't read a file that begins with it
CHOICES = ("tools",)  # members that a person changes: an entry that is there keeps its own


class FileEdit(msgspec.Struct, frozen=True):
    """A change of a client's file to `after`; None removes it. `is_restored` says that `after` is what was there before
    Toolgate came, `is_repeated` that the backup still holds that."""

    file: ConfigFile
    after: str | None
    is_restored: bool = False
    is_repeated: bool = False

    @property
    def is_change(self) -> bool:
        return self.after != self.file.text

    @property
    def drops_mark(self) -> bool:
        """Whether the file loses a byte order mark."""
        return (self.file.text or "").startswith(BYTE_ORDER_MARK) and not (self.after or "").startswith(BYTE_ORDER_MARK)

    def apply(self) -> bool:
        """Write the file, and return whether there is a backup of the old one. Raises ConfigFileError, OSError."""
        if self.is_restored:
            self.file.restore(self.after)
            return False
        return self.file.replace(self.after or "", keep_backup=self.is_repeated)


def plan_install(client: ClientSpec, file: ConfigFile, entry: ClientEntry) -> FileEdit:
    """Return the edit that adds the entry. Raises ConfigFileError for a file that can't be edited."""
    try:
        old = _find_entry(client, file.text or "")
        _check_own(client, file, old)
        after = _add_entry(client, file.text or "", entry)
        is_repeated = old is not None and _find_original(client, file, old) is not None
    except ConfigSyntaxError as error:
        raise ConfigFileError(f"{file}: {error}") from None
    return FileEdit(file, after, is_repeated=is_repeated)


def plan_uninstall(client: ClientSpec, file: ConfigFile) -> FileEdit:
    """Return the edit that removes the entry: to what was there before, byte for byte, if nothing else has changed.

    Raises ConfigFileError for a file that can't be edited.
    """
    text = file.text or ""
    try:
        entry = _find_entry(client, text)
        if entry is None:
            return FileEdit(file, file.text)
        _check_own(client, file, entry)
        original = _find_original(client, file, entry)
        if original is not None:
            return FileEdit(file, original, is_restored=True)
        if file.read_backup() is None and _is_alone(client, text, entry):
            return FileEdit(file, None, is_restored=True)
        return FileEdit(file, _remove_entry(client, text))
    except ConfigSyntaxError as error:
        raise ConfigFileError(f"{file}: {error}") from None


def format_change(client: ClientSpec, edit: FileEdit, entry: ClientEntry | None) -> list[str]:
    """Return the lines of this server's entry as a diff. Of what a person put there the names are shown, and the values
    hidden, since they may be secrets; other servers may be on the same line of the file."""
    before, after = (_format_shown(client, text, entry) for text in (edit.file.text, edit.after))
    return list(difflib.unified_diff(before, after, n=len(before), lineterm=""))[3:]


def _format_shown(client: ClientSpec, text: str | None, entry: ClientEntry | None) -> list[str]:
    found = _find_entry(client, text or "")
    if found is None:
        return []
    own = dict(entry or {})
    if isinstance(command := found.get("command"), str):
        own["command"] = command  # the program alone: its arguments have a key of their own
    shown = {key: value if key in own and own[key] == value else HIDDEN for key, value in found.items()}
    lines = NOTATIONS["json" if client.notation == "shell" else client.notation](client.container, shown).splitlines()
    return lines if client.notation == "toml" else lines[2:-2]  # without the object of the servers


def has_entry(client: ClientSpec, file: ConfigFile) -> bool:
    """Return whether the client's file has an entry of this server. Raises ConfigFileError."""
    return plan_uninstall(client, file).is_change


def _find_original(client: ClientSpec, file: ConfigFile, entry: ClientEntry) -> str | None:
    """Return the backup if the file is what adding the entry makes of it."""
    backup = file.read_backup()
    try:
        if backup is None or _find_entry(client, backup) is not None:
            return None
        is_same = _add_entry(client, backup, entry) == (file.text or "").removeprefix(BYTE_ORDER_MARK)
        return backup if is_same else None
    except ConfigSyntaxError:
        return None


def _is_alone(client: ClientSpec, text: str, entry: ClientEntry) -> bool:
    """Return whether the file is what adding the entry to an empty one makes."""
    try:
        return _add_entry(client, "", entry) == text
    except (ConfigSyntaxError, TypeError):  # a member that Toolgate does not write, such as a table or a date in TOML
        return False


def _find_entry(client: ClientSpec, text: str) -> ClientEntry | None:
    text = text.removeprefix(BYTE_ORDER_MARK)
    data: Any = toml_table.parse_toml(text) if client.notation == "toml" else jsonc.parse_jsonc(text)
    servers = data.get(client.container)
    entry = servers.get(NAME) if isinstance(servers, dict) else None
    return entry if isinstance(entry, dict) else None


def _add_entry(client: ClientSpec, text: str, entry: ClientEntry) -> str:
    path, text = (client.container, NAME), text.removeprefix(BYTE_ORDER_MARK)
    if client.notation == "toml":
        stale = _list_stale(_find_entry(client, text) or {}, entry)
        return toml_table.set_table(text, path, entry, stale, TOML_COMMENTS)
    old = _find_entry(client, text)
    if old is None:
        return jsonc.set_member(text, path, entry)
    for key in _list_stale(old, entry):
        text = jsonc.remove_member(text, (*path, key))
    for key, value in entry.items():
        if key not in old or (old[key] != value and key not in CHOICES):
            text = jsonc.set_member(text, (*path, key), value)
    return text


def _list_stale(old: ClientEntry, entry: ClientEntry) -> list[str]:
    """Return the members of an old entry that name another server, and the secrets for a server at another URL."""
    is_same = all(old.get(key) == entry.get(key) for key in URL_KEYS)
    return [key for key in (*SERVER_KEYS, *(() if is_same else SECRET_KEYS)) if key in old and key not in entry]


def _remove_entry(client: ClientSpec, text: str) -> str:
    path, text = (client.container, NAME), text.removeprefix(BYTE_ORDER_MARK)
    return toml_table.remove_table(text, path) if client.notation == "toml" else jsonc.remove_member(text, path)


def _check_own(client: ClientSpec, file: ConfigFile, entry: Mapping[str, Any] | None) -> None:
    """Raise ConfigFileError if the entry of this name starts another program."""
    command = (entry or {}).get("command")
    if entry is None or command is None:
        return
    words = [*(command if isinstance(command, list) else [command]), *_as_list(entry.get("args"))]
    if not any(Path(str(word)).name in COMMANDS for word in words):
        program = escape_unprintable(str(next(iter(words), ""))[:200].split(" ")[0])  # arguments may be secrets
        raise ConfigFileError(
            f"{file}: {client.container}.{NAME} starts another program ({program}): remove or rename it first"
        )


def _as_list(value: Any) -> Sequence[Any]:
    return value if isinstance(value, list) else []
