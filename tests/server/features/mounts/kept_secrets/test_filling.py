"""Secrets in values, headers and URLs of a mount."""

import pytest

from toolgate.server.features.mounts.config.mount_config import MountConfig
from toolgate.server.features.mounts.config.table import read_mount
from toolgate.server.features.mounts.kept_secrets import filling
from toolgate.server.features.mounts.upstream.errors import MountError

VALUES = {"KEY": "a b/c&d", "dots": "..", "lines": "a\r\nX-Evil: 1", "greek": "κ"}


def read(**rows: object) -> MountConfig | str:
    """Return the mount, or its first fault."""
    found = read_mount("far", rows, "file", {"VALUE": "v"})
    return found if isinstance(found, MountConfig) else f"{found[0].code}{found[0].text}"


def test_names_stay_in_the_configuration_until_the_mount_is_opened() -> None:
    found = read(command="x", env={"A": "${secret:KEY}-${env:VALUE}"})
    assert isinstance(found, MountConfig) and found.env == {"A": "${secret:KEY}-v"}
    found = read(url="https://far.example/mcp?key=${secret:KEY}", headers={"X-A": "Bearer ${secret:KEY}"})
    assert isinstance(found, MountConfig) and found.url.endswith("${secret:KEY}")


@pytest.mark.parametrize(
    ("rows", "told"),
    [
        ({"command": "x", "args": ["--key=${secret:KEY}"]}, "args: ${secret:KEY} would be seen by others"),
        ({"command": "${secret:KEY}"}, "command: ${secret:KEY} would be seen"),
        ({"command": "x", "env": {"A": "${secret:}"}}, "env: A: ${secret:} names no secret"),
        ({"command": "x", "env": {"A": "${secret:a b}"}}, "env: A: ${secret:a b} names no secret"),
        ({"command": "x", "env": {"A": "${secret:-a}"}}, "names no secret"),
        ({"command": "x", "env": {"A": f"${{secret:{'a' * 65}}}"}}, "names no secret"),
        ({"url": "https://${secret:KEY}/mcp"}, "who set it would choose the server"),
        ({"url": "https://far.example:${secret:KEY}/mcp"}, "url: "),
        ({"url": "https://far.example/", "secrets": "mine"}, "secrets: "),
        ({"url": "https://far.example/", "secrets": "own"}, "has no effect where no ${secret:NAME} is named"),
        (
            {"url": "https://far.example/", "headers": {"A": "${secret:K}"}, "secrets": "own", "per": "all"},
            'own can be nobody\'s where per is "all"',
        ),
    ],
)
def test_what_cannot_hold_a_secret_is_refused(rows: dict[str, object], told: str) -> None:
    assert told in str(read(**rows))


def test_a_value_in_a_url_is_encoded_and_leads_nowhere_else() -> None:
    filled = filling.fill_in_url("https://far.example/${secret:KEY}/mcp?key=${secret:greek}", VALUES)
    assert filled == "https://far.example/a%20b%2Fc%26d/mcp?key=%CE%BA"
    with pytest.raises(MountError, match="SECRET_UNFIT"):
        filling.fill_in_url("https://far.example/${secret:dots}/mcp", VALUES)


def test_a_header_takes_one_printable_line() -> None:
    assert filling.fill_in_header("X", "Bearer ${secret:KEY}", VALUES) == "Bearer a b/c&d"
    for name in ("lines", "greek"):
        with pytest.raises(MountError, match="SECRET_UNFIT") as raised:
            filling.fill_in_header("X", f"${{secret:{name}}}", VALUES)
        assert VALUES[name] not in str(raised.value)
