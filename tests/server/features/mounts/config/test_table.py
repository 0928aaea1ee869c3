"""`[mounts.NAME]`: what is read, and what is refused with its key and the fix."""

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from toolgate.server.base.errors import UsageError
from toolgate.server.config.load import load, read_tables
from toolgate.server.features.mounts.config.mount_config import MountConfig, MountLimits, MountPath
from toolgate.server.features.mounts.config.table import (
    MountList,
    check_mounts,
    read_current_mounts,
    read_mounts,
    read_own_mounts,
)

ENVIRONMENT = {"TOKEN": "s3cret", "EMPTY": "", "BROKEN": "a\r\nX: b"}


def read(text: str, environment: Mapping[str, str] = ENVIRONMENT) -> MountList:
    return read_mounts(tomllib.loads(text)["mounts"], "/etc/toolgate.toml", environment)


def read_fault(lines: str, name: str = "github") -> tuple[str, str]:
    """Return the code and the text of the one fault of a mount, without its place."""
    found = read(f"[mounts.{name}]\n{lines}\n[mounts.good]\ncommand = 'x'\n")
    assert [mount.name for mount in found.mounts] == ["good"], "the others are served"
    (fault,) = found.faults
    start = f"/etc/toolgate.toml: [mounts.{fault.name if fault.name == 'github' else repr(fault.name)}]"
    assert fault.text.startswith(start)
    return fault.code, fault.text.removeprefix(start).strip()


def test_a_command_and_a_url_have_these_defaults() -> None:
    found = read('[mounts.files]\ncommand = "npx"\n[mounts.web]\nurl = "https://example.com/mcp"\n')
    files = MountConfig(name="files", command="npx", prefix="files__")
    assert found == MountList((files, MountConfig(name="web", url="https://example.com/mcp", prefix="web__")))
    assert (files.scope, files.per, files.timeout, files.protocol, files.asks_one) == (
        *("tools:plugins", None, 60.0, "auto", False),
    )


def test_each_key_is_read() -> None:
    text = """
        [mounts.my-files2]
        command = "npx"
        args = ["-y", "${env:TOKEN}", "sh -c 'echo ${HOME}'", ""]
        cwd = "${env:NONE:-/srv}"
        network = ["api.example.com", "*.example.org", "10.0.0.0/8"]
        files = ["/srv/a", "/srv/b:ro", "${env:NONE:-/srv/c}:rw"]
        type = "stdio"
        tools = ["read_*", "!read_private"]
        read_only = ["read_*"]
        prefix = ""
        scope = "files:all"
        per = "session"
        timeout = "5m"
        limits = { calls = 60, at_once = 4 }
        protocol = "legacy"
        ask = "one"
        [mounts.my-files2.env]
        KEY = "Bearer ${env:TOKEN}${env:NONE:-:x}"
        [mounts.web]
        url = "http://127.0.0.1:8000/sse?a=b"
        type = "sse"
        timeout = 7
        headers = { "X-Key" = "${env:TOKEN}", Authorization = "Bearer a" }
    """
    assert read(text) == MountList(
        (
            MountConfig(
                name="my-files2",
                command="npx",
                args=("-y", "s3cret", "sh -c 'echo ${HOME}'", ""),
                cwd=Path("/srv"),
                network=("api.example.com", "*.example.org", "10.0.0.0/8"),
                files=(MountPath(Path("/srv/a")), MountPath(Path("/srv/b")), MountPath(Path("/srv/c"), True)),
                env={"KEY": "Bearer s3cret:x"},
                tools=("read_*", "!read_private"),
                read_only=("read_*",),
                prefix="",
                scope="files:all",
                per="session",
                timeout=300.0,
                limits=MountLimits(60, 4),
                protocol="legacy",
                asks_one=True,
            ),
            MountConfig(
                name="web",
                url="http://127.0.0.1:8000/sse?a=b",
                is_sse=True,
                timeout=7.0,
                headers={"X-Key": "s3cret", "Authorization": "Bearer a"},
                prefix="web__",
            ),
        )
    )


@pytest.mark.parametrize("kind", ["http", "streamable-http", "streamableHttp"])
def test_streamable_http_has_three_spellings(kind: str) -> None:
    (mount,) = read(f'[mounts.a]\nurl = "https://a"\ntype = "{kind}"').mounts
    assert not mount.is_sse


@pytest.mark.parametrize("name", ['"My Server"', "1a", "-a", "A", "a_b", "a" * 17, '""', '"é"'])
def test_a_name_is_short_and_small(name: str) -> None:
    code, text = read_fault('command = "a"', name)
    assert code == "CONFIG_NAME" and "up to 15 small letters" in text


COMMAND, URL = 'command = "a"\n', 'url = "https://a"\n'
EXCHANGE = URL + 'auth = "exchange"\n'
MACHINE = (
    URL
    + """auth = "client_credentials"
client_id = "c"
client_secret = "${secret:S}"
token_url = "https://t"
"""
)
FAULTS = {
    'comand = "npx"': ("CONFIG_UNKNOWN_KEY", "unknown key 'comand' (did you mean command?)"),
    COMMAND + 'readonly = ["a"]': ("CONFIG_UNKNOWN_KEY", "did you mean read_only?"),
    "": ("CONFIG_NO_SERVER", "command or url is missing"),
    COMMAND + 'url = "https://a"': ("CONFIG_TWO_SERVERS", "remove one"),
    COMMAND + 'headers = { a = "b" }': ("CONFIG_VALUE", "headers: has no effect beside command"),
    URL + 'args = ["b"]': ("CONFIG_VALUE", "args: has no effect beside url"),
    COMMAND + 'type = "sse"': ("CONFIG_VALUE", "type: a command speaks stdio"),
    URL + 'type = "stdio"': ("CONFIG_VALUE", "type: a URL speaks http or sse"),
    URL + 'type = "htp"': ("CONFIG_VALUE", "(did you mean http?)"),
    'command = ["npx"]': ("CONFIG_VALUE", "command: must be a text"),
    'command = " "': ("CONFIG_VALUE", "command: must be a program"),
    'command = "a\\u0000"': ("CONFIG_VALUE", "NUL"),
    COMMAND + 'args = "-y"': ("CONFIG_VALUE", 'args: must be a list of texts, such as ["a", "b"]'),
    COMMAND + "args = [1]": ("CONFIG_VALUE", "args: must be a list of texts"),
    COMMAND + 'args = ["${env:NONE}"]': ("CONFIG_VARIABLE_NOT_SET", "args: the variable NONE is not set"),
    'url = "https://a/${input:key}"': ("CONFIG_PLACEHOLDER", "url: ${input:key} is to be set by you"),
    COMMAND + 'cwd = "data"': ("CONFIG_VALUE", "cwd: must be an absolute path"),
    COMMAND + "env = { PORT = 80 }": ("CONFIG_VALUE", "env: PORT must be a text in quotes"),
    COMMAND + 'env = ["A=b"]': ("CONFIG_VALUE", "env: must be a table of texts"),
    COMMAND + 'env = { "A=" = "b" }': ("CONFIG_VALUE", "'A=' is not the name of a variable"),
    COMMAND + 'env = { A = "${env:NONE}" }': ("CONFIG_VARIABLE_NOT_SET", "A: the variable NONE is not set"),
    COMMAND + 'env = { A = "${env:EMPTY}" }': ("CONFIG_VARIABLE_NOT_SET", "or is empty"),
    COMMAND + 'env = { A = "${input:key}" }': ("CONFIG_PLACEHOLDER", "env: A: ${input:key} is to be set by you"),
    COMMAND + 'env = { A = "${TOKEN}" }': ("CONFIG_PLACEHOLDER", "or ${env:NAME}"),
    'url = "ftp://a"': ("CONFIG_VALUE", "url: must be an http or https URL"),
    'url = "https://a b"': ("CONFIG_VALUE", "url: must be an http or https URL"),
    'url = "https://a:99999"': ("CONFIG_VALUE", "url: must be an http or https URL"),
    'url = "https:///a"': ("CONFIG_VALUE", "url: must be an http or https URL"),
    'url = "https://a/#b"': ("CONFIG_VALUE", "url: must have no #"),
    URL + 'headers = { "a b" = "c" }': ("CONFIG_VALUE", "'a b' is not the name of a header"),
    URL + 'headers = { A = "b", a = "c" }': ("CONFIG_VALUE", "a is there twice"),
    URL + 'scopes = ["a"]': ("CONFIG_VALUE", 'without auth = "oauth" or "client_credentials" or "exchange": remove it'),
    URL + 'token_url = "https://b"': ("CONFIG_VALUE", "token_url: has no effect without auth"),
    COMMAND + 'auth = "oauth"': ("CONFIG_VALUE", "auth: has no effect beside command"),
    URL + 'auth = "oath"': ("CONFIG_VALUE", "(did you mean oauth?)"),
    URL + 'auth = "oauth"\ntoken_url = "https://b"': (
        "CONFIG_VALUE",
        'token_url: has no effect beside auth = "oauth"',
    ),
    URL + 'auth = "oauth"\nclient_id = "a"\nclient_secret = "b"': ("CONFIG_VALUE", "audience: is missing: name the"),
    URL + 'auth = "oauth"\nper = "all"': ("CONFIG_VALUE", "auth: nobody signs in for all"),
    EXCHANGE + 'audience = "a"\nclient_id = "c"\nper = "all"': ("CONFIG_VALUE", "auth: nobody signs in for all"),
    EXCHANGE + 'audience = "a"': ("CONFIG_VALUE", "client_id: is missing: name the client"),
    EXCHANGE + 'client_id = "c"': ("CONFIG_VALUE", "audience: is missing: name the issuer of its"),
    EXCHANGE + 'client_id = "c"\naudience = ""': ("CONFIG_VALUE", "audience: is missing: name the"),
    EXCHANGE + 'audience = "a"\nclient_id = "${secret:A}"': ("CONFIG_PLACEHOLDER", "client_id: no secret may"),
    MACHINE.replace("client_id", "#"): ("CONFIG_VALUE", "client_id: is missing: name the client"),
    MACHINE.replace("client_secret", "#"): ("CONFIG_VALUE", 'client_secret: is missing: write "${secret:NAME}"'),
    MACHINE.replace("token_url", "#"): ("CONFIG_VALUE", "token_url: is missing: name where its authorization server"),
    MACHINE.replace("https://t", "http://t"): ("CONFIG_VALUE", "token_url: must be an https URL, or http on this"),
    MACHINE.replace("https://t", "https://${secret:T}"): ("CONFIG_PLACEHOLDER", "token_url: no secret may stand there"),
    MACHINE + "refresh_retry = true": ("CONFIG_VALUE", 'no effect beside auth = "client_credentials"'),
    MACHINE + 'audience = "a\\nb"': ("CONFIG_VALUE", "audience: must be of printable ASCII"),
    MACHINE + 'headers = { authorization = "a" }': ("CONFIG_VALUE", "auth: its token is the Authorization header"),
    MACHINE.replace("https://a", "https://a/${secret:A}"): ("CONFIG_VALUE", "auth: the URL must be the same for all"),
    MACHINE + 'secrets = "own"\nper = "all"': ("CONFIG_VALUE", "own can be nobody's"),
    MACHINE.replace("${secret:S}", "s") + 'secrets = "own"': ("CONFIG_VALUE", "secrets: has no effect where no"),
    URL + 'headers = { A = "b\\nc: d" }': ("CONFIG_VALUE", "A must be of printable ASCII on one line"),
    URL + 'headers = { A = "é" }': ("CONFIG_VALUE", "A must be of printable ASCII"),
    URL + 'headers = { A = "${env:BROKEN}" }': ("CONFIG_VALUE", "A must be of printable ASCII on one line"),
    URL + "timeout = 0": ("CONFIG_VALUE", "timeout: must be seconds, more than 0"),
    URL + 'timeout = "soon"': ("CONFIG_VALUE", "such as 90s or 5m"),
    URL + "timeout = true": ("CONFIG_VALUE", 'such as "60s"'),
    URL + "limits = 5": ("CONFIG_VALUE", "limits: must be a table of numbers"),
    URL + "limits = { call = 5 }": ("CONFIG_VALUE", "'call' is no limit: calls and at_once are (did you mean calls?)"),
    URL + "limits = { calls = 0 }": ("CONFIG_VALUE", "calls must be a whole number from 1 on"),
    URL + "limits = { at_once = true }": ("CONFIG_VALUE", "at_once must be a whole number from 1 on"),
    URL + 'per = "user"': ("CONFIG_VALUE", "per: must be person, session or all"),
    URL + 'protocol = "new"': ("CONFIG_VALUE", "protocol: must be auto, legacy or modern"),
    URL + 'ask = "all"': ("CONFIG_VALUE", "ask: must be newest or one"),
    URL + 'tools = "a"': ("CONFIG_VALUE", "tools: must be a list"),
    URL + 'tools = [""]': ("CONFIG_VALUE", "tools: must be patterns of names"),
    URL + 'tools = ["!a", "*"]': ("CONFIG_VALUE", 'write "*" first'),
    URL + 'prefix = "a.b"': ("CONFIG_VALUE", "prefix: must be at most 32 letters"),
    COMMAND + 'network = "a.example"': ("CONFIG_VALUE", "network: must be a list of texts"),
    COMMAND + 'network = ["https://a.example"]': ("CONFIG_VALUE", "network: 'https://a.example' is not a host name"),
    COMMAND + 'network = ["a.example:443"]': ("CONFIG_VALUE", "network: 'a.example:443' is not a host name"),
    COMMAND + 'network = ["*example.com"]': ("CONFIG_VALUE", "network: '*example.com' is not a pattern of hosts"),
    URL + 'network = ["a.example"]': ("CONFIG_VALUE", "network: has no effect beside url"),
    COMMAND + 'files = ["data"]': ("CONFIG_VALUE", "files: must be an absolute path"),
    COMMAND + 'files = ["/srv/../etc"]': ("CONFIG_VALUE", "files: /srv/../etc must be written without .."),
    COMMAND + 'files = ["/srv", "/srv/a:rw"]': ("CONFIG_VALUE", "files: /srv/a and /srv are one in the other"),
    URL + 'files = ["/srv"]': ("CONFIG_VALUE", "files: has no effect beside url"),
    URL + 'scope = "a b"': ("CONFIG_VALUE", "scope: must be one OAuth scope"),
}  # fmt: skip


@pytest.mark.parametrize("lines", FAULTS)
def test_a_fault_has_its_code_its_key_and_the_fix(lines: str) -> None:
    code, text = read_fault(lines)
    assert (code, FAULTS[lines][1] in text) == (FAULTS[lines][0], True), text


@pytest.mark.parametrize("name", ["Host", "content-length", "Mcp-Session-Id", "MCP-Protocol-Version", "Accept"])
def test_headers_of_the_protocol_are_refused(name: str) -> None:
    assert (
        read_fault(f'{URL}headers = {{ {name} = "a" }}')[1] == f"headers: {name} is written by Toolgate: leave it out"
    )


def test_a_password_in_a_url_is_refused_and_not_repeated() -> None:
    code, text = read_fault('url = "https://ada:hunter2@a/mcp"')
    assert code == "CONFIG_VALUE" and "password" in text and "hunter2" not in text


def test_a_value_from_the_environment_is_not_repeated() -> None:
    (fault,) = read(URL.join(("[mounts.a]\n", 'headers = { A = "${env:BAD}" }')), {"BAD": "s3cret\n"}).faults
    assert "s3cret" not in fault.text


def test_all_faults_of_a_mount_are_told() -> None:
    faults = read('[mounts.A]\nuser = "a"\nper = "b"\ntimeout = "c"').faults
    assert [fault.code for fault in faults] == [
        *("CONFIG_NAME", "CONFIG_UNKNOWN_KEY", "CONFIG_NO_SERVER", "CONFIG_VALUE", "CONFIG_VALUE"),
    ]


def test_a_table_without_names_stops_the_start(tmp_path: Path) -> None:
    file = tmp_path / "config.toml"
    for text, message in (
        ('[mounts]\ncommand = "npx"', "so write .mounts.NAME. above"),
        ("mounts = 3", "mounts must be a table: write .mounts.NAME."),
        ("[[mounts]]", "mounts must be a table"),
        ("[mount.a]", r"there is no table .mount. \(did you mean mounts\?\): tables are .mounts.NAME."),
    ):
        file.write_text(text)
        with pytest.raises(UsageError, match=message):
            check_mounts(load({"config": str(file)}, {}))


def test_the_config_file_gives_its_table_and_its_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    named, own = tmp_path / "named.toml", tmp_path / "home/.config/toolgate/config.toml"
    home: dict[str, Any] = {"HOME": str(tmp_path / "home"), "TOKEN": "s3cret"}
    assert load({}, home).mounts == {} and load({}, home).config_path == own
    named.write_text("port = 8081\n[mounts.a]\nurl = 'https://a'\nheaders = { K = '${env:TOKEN}' }")
    config = load({"config": "named.toml"}, home)
    assert (config.port, config.config_path) == (8081, named)
    assert [mount.headers for mount in read_own_mounts(config).mounts] == [{"K": "s3cret"}]
    named.write_text("[mounts.c]\ncommand = 'x'\n")
    assert [mount.name for mount in read_own_mounts(config).mounts] == ["a"], "as it was at the start"
    assert [mount.name for mount in read_current_mounts(config).mounts] == ["c"]
    named.unlink()
    assert read_current_mounts(config) == MountList()
    own.parent.mkdir(parents=True)
    own.write_text("[mounts.b]\ncommand = 'x'\n")
    assert load({}, home).mounts == {"b": {"command": "x"}} == read_tables(own)["mounts"]
    assert read_tables(tmp_path / "none") == {}
