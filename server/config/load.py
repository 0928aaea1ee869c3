"""Read the options: flags beat the environment, the environment beats the config file.

No other module reads the environment.
"""

import os
import pwd
import re
import stat
import sys
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import msgspec

from toolgate.server.base.errors import UsageError
from toolgate.server.base.merged_rows import merge_rows
from toolgate.server.base.text import describe_os_error, show_bytes, suggest
from toolgate.server.config.feature_rows import FEATURES
from toolgate.server.config.login_shell import find_login_shell
from toolgate.server.config.option import CONFIG, Option
from toolgate.server.config.options import OPTIONS
from toolgate.server.config.plugin_paths import format_plugin_path
from toolgate.server.config.transports import HTTP_TRANSPORTS, HttpTransport
from toolgate.server.config.types import FALSE_WORDS, is_loopback
from toolgate.server.config.variables import ACCESS, refuse_unknown
from toolgate.tools.api.regular_file import read_regular_text

NOTIFY_SOCKET = "NOTIFY_SOCKET"  # sd_notify(3)
SOCKET_VARIABLES = ("LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES", NOTIFY_SOCKET)  # sd_listen_fds(3)
SECRET_VARIABLES = tuple(option.variable for option in OPTIONS if option.is_secret)
MAX_FILE = 2**20  # bytes of the config file; a table of a mount has some hundred
CLASSIC_FILE = "scorpiox-env.txt"
CLASSIC_LIMIT = 64 * 1024  # bytes; it holds a few lines
SEARCH_KEY = re.compile(r"TOOLGATE_[A-Z_]+_API_KEY")  # of search engines
TRACE_HEADERS = re.compile(r"OTEL_EXPORTER_OTLP_(?:[A-Z]+_)?HEADERS")  # credentials for a trace collector
TABLES = tuple(row.table for row in FEATURES if row.table)  # of the config file
FLAGS = {flag: option for option in (CONFIG, *OPTIONS) for flag in (option.flag, option.short) if flag}
SYSTEM_STATE = Path("/var/lib/toolgate")
STATE_CONTENT = ("state.db", "audit", "workspaces/local")  # entries that show that a state folder is in use
REMOTE_ENVIRONMENT = frozenset(("PATH", "LANG", "LC_ALL", "LC_CTYPE", "TZ"))


class ClassicSettings(msgspec.Struct, frozen=True):
    """The settings of the classic `scorpiox-env.txt`: hidden tools, and whether progress is sent."""

    hidden_tools: tuple[str, ...] = ()
    streaming: bool = True
    unknown_keys: tuple[str, ...] = ()


class Config:
    """The value of every option, as an attribute: `config.allow_private`.

    config_path: the config file: the one that was named, or else the person's own, which may be missing
    tables: the tables of features in it, as TOML has them; each is an attribute, {} if the file does not have it
    """

    def __init__(
        self,
        values: Mapping[str, Any],
        classic: ClassicSettings,
        environment: Mapping[str, str],
        config_path: Path | None = None,
        tables: Mapping[str, dict[str, Any]] | None = None,
        socket_variables: Mapping[str, str] | None = None,
    ) -> None:
        self.config_path = config_path or default_config_path(environment)
        self.tables = tables or {}
        self.serves_servers = False  # whether this process works for servers, and has no MCP clients of its own
        self.own_sockets: tuple[Path, ...] = ()  # where those servers connect: no command may
        self.classic = classic
        self.environment = environment
        self.socket_variables = socket_variables or {}  # for the sockets of a service manager
        self._given = dict(values)
        defaults = {option.key: option.default for option in OPTIONS}
        defaults["state"] = _default_state(environment)
        defaults["grace"] = 5.0 if any(values.get(row.name) for row in HTTP_TRANSPORTS) else 1.5
        no_tables: Mapping[str, Any] = {name: {} for name in TABLES}
        own = {**vars(type(self)), **vars(self)}
        merge_rows("attributes of Config", own.items(), defaults.items(), no_tables.items())
        for key, value in {**defaults, **values, **no_tables, **self.tables}.items():
            setattr(self, key, value)

    def __getattr__(self, name: str) -> Any:  # for the type checkers: the attributes come from OPTIONS
        raise AttributeError(name)

    def is_given(self, key: str) -> bool:
        """Return whether the option has a value from flags, environment or file."""
        return key in self._given

    def list_secret_files(self) -> list[Path]:
        """Return the files that options with secrets name, also in place of a URL."""
        values = (getattr(self, option.key) for option in OPTIONS if option.is_secret)
        files = (value if isinstance(value, Path) else getattr(value, "file", None) for value in values)
        return [file for file in files if file is not None]

    @property
    def is_remote(self) -> bool:
        """Return whether HTTP is served: callers may be other people than the user who started the server."""
        return bool(self.serves_servers or self.transports)

    def find_shared_workspace(self) -> Path | None:
        """Return the folder that all callers work in, or None if each person has their own. Raises UsageError."""
        given: Path | None = self.workspace
        if given is not None or self.is_remote:
            return given
        try:
            return Path.cwd()
        except OSError:
            raise UsageError("--workspace: the current directory is gone; name a folder") from None

    @property
    def transports(self) -> list[HttpTransport]:
        return [row for row in HTTP_TRANSPORTS if getattr(self, row.name)]

    @property
    def access_token(self) -> str:
        """Return the access token for --url, or "". There is no flag for it: all users can see command lines."""
        return self.environment.get(ACCESS, "")

    @property
    def own_folder(self) -> Path:
        """Return the folder of the person's own config file and tokens."""
        return default_config_path(self.environment).parent

    @property
    def sign_in_folder(self) -> Path:
        """Return the folder with the tokens of `toolgate login`: the person's own."""
        return self.own_folder / "sign-ins"

    @property
    def is_tracing(self) -> bool:
        """Return whether OpenTelemetry's own variables name a trace collector."""
        off = self.environment.get("OTEL_SDK_DISABLED", "").strip().lower() == "true"
        kinds = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
        return not off and any(self.environment.get(name, "").strip() for name in kinds)

    @property
    def trace_protocol(self) -> str:
        """Return the protocol in OpenTelemetry's variables, or ""."""
        kinds = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
        return next((self.environment[name].strip() for name in kinds if self.environment.get(name)), "")

    def to_flags(self, *, without: Collection[str] = ()) -> list[str]:
        """Return the options that have a value as flags with absolute paths, for a server over stdio without a config
        file. The flags work from any folder. Options for HTTP, and those in `without`, are left out."""
        words: list[str] = []
        for option in OPTIONS:
            value = self._given.get(option.key)
            if option.is_http_only or option.name in without:
                continue
            if option.is_switch:
                words += [option.flag] if value else []
            elif value is not None:
                parts = value if option.is_repeatable else (value,)
                words += [word for part in parts for word in (option.flag, _format_value(part))]
        return words

    def to_client_flags(self) -> list[str]:
        """Return the flags of a server that an MCP client starts over stdio."""
        flags = self.to_flags()
        if self.tables:
            flags += ["--config", str(self.config_path)]
        return [*flags, "--stdio"] if self.is_remote else flags

    def to_server(self) -> tuple[list[str], dict[str, str]]:
        """Return the flags and the environment of a server over stdio with the same options, and the same tables of
        the config file."""
        flags = [*self.to_flags(), "--stdio"]
        if self.tables:
            flags += ["--config", str(self.config_path)]
        return flags, self.server_environment

    @property
    def own_environment(self) -> dict[str, str]:
        """Return the environment without TOOLGATE_ variables."""
        return {name: value for name, value in self.environment.items() if not name.startswith("TOOLGATE_")}

    @property
    def server_environment(self) -> dict[str, str]:
        """Return the environment of a server that we start. It has the keys of search engines, which are no flags."""
        keys = {name: value for name, value in self.environment.items() if SEARCH_KEY.fullmatch(name)}
        return {**self.own_environment, **keys}

    def can_commands_reach_host(self, level: str) -> bool:
        """Return whether commands in a sandbox of this level reach this machine's ports, the server's included."""
        return level == "none" or self.sandbox_network == "all"

    @property
    def is_public(self) -> bool:
        """Return whether other machines may reach the server."""
        public = urlsplit(self.public_url or "http://127.0.0.1").hostname or ""
        return self.is_remote and not (is_loopback(self.host) and is_loopback(public))

    @property
    def sandbox_level(self) -> str:
        """Return the value of `--sandbox`, or its default."""
        level: str = self.sandbox or ("auto" if self.is_remote else "none")
        return level

    @property
    def login_shell(self) -> str | None:
        """Return the login shell whose PATH commands get: that of a person whose desktop program started the server,
        where commands have no sandbox."""
        return None if self.is_remote or self.sandbox_level != "none" else find_login_shell(self.environment)

    @property
    def command_environment(self) -> dict[str, str]:
        """Return the environment of commands. Over stdio it is the server's without TOOLGATE_ variables and trace
        credentials; over HTTP and in a sandbox a short list. TERM tells programs to write plain text."""
        if self.is_remote or self.sandbox_level != "none":
            given = {name: value for name, value in self.environment.items() if name in REMOTE_ENVIRONMENT}
        else:
            given = {name: value for name, value in self.own_environment.items() if not TRACE_HEADERS.fullmatch(name)}
        return {**given, "TERM": "dumb"}


def read_flags(words: Sequence[str]) -> dict[str, Any] | None:
    """Return the options of a plain `toolgate [options]`, or None if there are other words."""
    flags: dict[str, Any] = {}
    rest = iter(words)
    for word in rest:
        flag, equals, value = word.partition("=")
        option = FLAGS.get(flag)
        if option is None or (equals and option.is_switch):
            return None
        if option.is_switch:
            value = "true"
        elif not equals and (value := next(rest, "-")).startswith("-"):
            return None
        if option.is_repeatable:
            flags.setdefault(option.key, []).append(value)
        else:
            flags[option.key] = value
    return flags


def read_environment() -> dict[str, str]:
    """Return the environment, for commands without options."""
    return dict(os.environ)


def load(flags: Mapping[str, Any], environment: Mapping[str, str] | None = None) -> Config:
    """Return the options from flags, environment and file. Raises UsageError, which names the invalid option."""
    is_ours = environment is None
    environment = dict(os.environ if environment is None else environment)
    handed = {name: environment.pop(name) for name in SOCKET_VARIABLES if name in environment}
    for name in (*handed, *SECRET_VARIABLES) if is_ours else ():
        os.environ.pop(name, None)  # child processes must not use the sockets and find the secrets
    refuse_unknown(environment)
    named = flags.get("config") or environment.get("TOOLGATE_CONFIG")
    config_path = Path(named) if named else default_config_path(environment)
    given, tables = _read_file(config_path, is_named=bool(named))
    for option in OPTIONS:
        if environment.get(option.variable):
            raw: Any = environment[option.variable]
            given[option.key] = (option.variable, option.split_variable(raw) if option.is_repeatable else raw)
        if option.key in flags:
            given[option.key] = (option.flag, flags[option.key])
    values: dict[str, Any] = {}
    for option in OPTIONS:
        if option.key in given:
            source, raw = given[option.key]
            value = _convert(option, source, raw)
            if option.is_planned and value is not False:
                raise UsageError(f"{source} is not available in this version")
            values[option.key] = value
    if values.get("stdio"):
        _choose_stdio(values, flags)
    return Config(values, _read_classic(Path(CLASSIC_FILE)), environment, config_path.absolute(), tables, handed)


def _choose_stdio(values: dict[str, Any], flags: Mapping[str, Any]) -> None:
    """Remove the options of HTTP from the values; where a flag selects HTTP, remove --stdio.

    Raises UsageError if both are flags.
    """
    of_http = [row.name for row in HTTP_TRANSPORTS if row.name in flags]
    if of_http and "stdio" in flags:
        raise UsageError(f"--stdio and --{of_http[0]} exclude each other: a server serves stdio or HTTP")
    for key in ("stdio",) if of_http else [option.key for option in OPTIONS if option.is_http_only]:
        values.pop(key, None)


def default_config_path(environment: Mapping[str, str]) -> Path:
    """Return the path of the person's own config file."""
    return _xdg_folder(environment, "XDG_CONFIG_HOME", ".config") / "toolgate" / "config.toml"


def _convert(option: Option, source: str, raw: Any) -> Any:
    parts = raw if option.is_repeatable else [raw]
    if not isinstance(parts, list) or not all(isinstance(part, str) for part in parts):
        form = 'a list of strings, such as ["a", "b"]' if option.is_repeatable else "one value"
        raise UsageError(f"{source} must be {form}")
    for part in parts:
        check_utf8(source, part)
    try:
        converted = [option.parse(part) for part in parts]
    except ValueError as error:
        raise UsageError(f"{source}: {error}") from None
    return tuple(converted) if option.is_repeatable else converted[0]


def check_utf8(source: str, word: str) -> None:
    """Raise UsageError for a word that is not UTF-8, as messages and the files of clients are."""
    try:
        word.encode()
    except UnicodeEncodeError:
        raise UsageError(
            f"{source}: {show_bytes(word)} is not UTF-8: rename the file or folder, or type it again"
        ) from None


def read_tables(path: Path) -> Mapping[str, dict[str, Any]]:
    """Return the tables of features in a config file, as it is now; a missing file has none. Raises UsageError."""
    return _read_file(path, is_named=False)[1]


def _read_file(path: Path, *, is_named: bool) -> tuple[dict[str, tuple[str, Any]], dict[str, dict[str, Any]]]:
    """Return the config file's options, each with its source, and its tables. Only a file that was named must be
    there."""
    try:
        text = read_regular_text(path, MAX_FILE) if str(path) != os.devnull else ""
    except FileNotFoundError:
        if is_named:
            raise UsageError(f"--config: there is no file {path}") from None
        return {}, {}
    except OSError as error:
        raise UsageError(f"--config: can't read {describe_os_error(error)}") from None
    except UnicodeDecodeError:
        raise UsageError(f"--config: {path} is not UTF-8 text") from None
    from toolgate.server.config.files.jsonc import ConfigSyntaxError  # start-up: few have a config file
    from toolgate.server.config.files.toml_table import parse_toml

    try:
        content = parse_toml(text)
    except ConfigSyntaxError as error:
        raise UsageError(f"--config: {path} is not valid TOML: {_explain_toml(text, error)}") from None
    known = {option.key: option for option in OPTIONS} | {option.name: option for option in OPTIONS}
    given: dict[str, tuple[str, Any]] = {}
    tables: dict[str, dict[str, Any]] = {}
    for name, value in content.items():
        if name in TABLES or isinstance(value, dict):
            tables[name] = _check_table(path, name, value)
        elif name not in known:
            raise UsageError(f"--config: {path}: unknown option {name!r}{suggest(name, known)}")
        else:
            given[known[name].key] = (f"{name} in {path}", _parse_toml(value))
    return given, tables


def _check_table(path: Path, name: str, value: Any) -> dict[str, Any]:
    """Return the table of a feature. Raises UsageError for another name or value."""
    if name not in TABLES:
        listed = f"tables are {', '.join(f'[{table}.NAME]' for table in TABLES)}; " if TABLES else ""
        near = suggest(name, TABLES)
        raise UsageError(f"--config: {path}: there is no table [{name}]{near}: {listed}write port = 8080 at the top")
    if not isinstance(value, dict):
        raise UsageError(f"--config: {path}: {name} must be a table: write [{name}.NAME] above its lines")
    return value


def _explain_toml(text: str, error: Exception) -> str:
    """Return why the text is not TOML. A value without quotes is the usual reason."""
    place = re.search(r"at line (\d+)", str(error))
    lines = text.splitlines()
    line = lines[int(place[1]) - 1] if place and int(place[1]) <= len(lines) else ""
    bare = re.fullmatch(r"\s*([\w-]+)\s*=\s*[^\s\"'\[{#][^\"'#]*(?:#.*)?", line)
    option = next((option for option in OPTIONS if bare and bare[1] in (option.key, option.name)), None)
    if place is None or bare is None or option is None:
        return str(error)
    form = "true or false" if option.is_switch else "a number, or a text in quotes"
    form = 'a list of texts, such as ["a", "b"]' if option.is_repeatable else form
    return f"line {place[1]}: {bare[1]} must be {form}"


def _format_value(value: Any) -> str:
    if isinstance(value, range):
        return f"{value[0]}-{value[-1]}"
    if isinstance(value, Path):
        return format_plugin_path(value)
    return f"{value:g}" if isinstance(value, float) else str(value)


def _parse_toml(value: Any) -> Any:
    """Return a TOML value as a command-line word, so that one parser serves both."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (int, float)):
        return str(value)
    return value


def _read_classic(path: Path) -> ClassicSettings:
    """Read `KEY=VALUE` lines of the original server: TOOLS, TOOL_<NAME>, STREAMING. They can only remove features."""
    try:  # a cloned repository may hold a link to any file, or a pipe that never ends
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW)
    except OSError:
        return ClassicSettings()
    with open(descriptor, encoding="utf-8-sig", errors="replace") as file:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            return ClassicSettings()
        lines = file.read(CLASSIC_LIMIT).splitlines()
    hidden: list[str] = []
    unknown: list[str] = []
    streaming = True
    for line in lines:
        name, equals, value = (part.strip() for part in line.partition("="))
        if not equals or name.startswith("#"):
            continue
        is_off = value.strip("\"'").lower() in FALSE_WORDS
        if name == "TOOLS":
            hidden += ["*"] if is_off else []
        elif name == "STREAMING":
            streaming = not is_off
        elif name.startswith("TOOL_"):
            hidden += [name.removeprefix("TOOL_")] if is_off else []
        else:
            unknown.append(name[:64])
    return ClassicSettings(tuple(hidden), streaming, tuple(unknown))


def _default_state(environment: Mapping[str, str]) -> Path:
    """Return the default state folder. Root's is the system's (FHS): sandbox users can't pass through /root. It is also
    that of the service's user, whose home it is. A state folder in use in the home stays, and so does a home that HOME
    sets."""
    own = _xdg_folder(environment, "XDG_DATA_HOME", ".local/share") / "toolgate"
    is_used = any(os.path.exists(own / name) for name in STATE_CONTENT)  # also where this user can't look
    home = environment.get("HOME")
    if sys.platform != "linux" or environment.get("XDG_DATA_HOME") or is_used:
        return own
    if home and Path(home) == SYSTEM_STATE:
        return SYSTEM_STATE
    if os.geteuid() != 0:
        return own
    is_own = not SYSTEM_STATE.exists() or SYSTEM_STATE.stat().st_uid == 0  # a unit's folder belongs to its user
    return SYSTEM_STATE if is_own and (not home or Path(home) == _root_home()) else own


def _root_home() -> Path:
    """Return root's home folder, as the system has it."""
    try:
        return Path(pwd.getpwuid(0).pw_dir)
    except KeyError:  # a container may have no users
        return Path("/root")


def _xdg_folder(environment: Mapping[str, str], variable: str, default: str) -> Path:
    """Return the XDG base directory; relative values are invalid and ignored (XDG Base Directory Specification)."""
    given = environment.get(variable, "")
    return Path(given) if given.startswith("/") else Path(environment.get("HOME") or "/") / default
