"""Any process at a proxy's address can name a person, unless the proxy must prove itself by a secret."""

import socket
import sys
from pathlib import Path

import psutil
import pytest

from tests.clients.raw_http_client import Site, site
from tests.server.auth.sign_in_server import Browser
from tests.server.cli.test_cli import run

SECRET = "a-secret-of-the-proxy-0123456789"
HEADER = ("--login", "header=X-User", "--allow-users", "*")
ADDRESSES = [
    each.address
    for listed in psutil.net_if_addrs().values()
    for each in listed
    if each.family == socket.AF_INET and not each.address.startswith("127.")
]
LINUX = pytest.mark.skipif(sys.platform != "linux", reason="bubblewrap is Linux's")


def who(at: Site, **headers: str) -> tuple[int, str]:
    got = Browser(at.port, {"accept": "text/html", **headers}).get("/account")
    return got.status, got.text


@pytest.mark.parametrize("proxies", ["127.0.0.1", "127.0.0.0/8", "::1", "0.0.0.0/0", "own"])
def test_a_header_that_commands_can_set_is_refused_at_the_start(proxies: str, tmp_path: Path) -> None:
    if proxies == "own":
        proxies = ADDRESSES[0] if ADDRESSES else pytest.skip("this machine has no address but loopback's")
    told = run(tmp_path, "-t", "--port", "0", "--sandbox", "none", "--trusted-proxies", proxies, *HEADER)
    assert told.returncode == 2 and "--login-header-secret" in told.stderr, told.stderr
    assert "serving" not in told.stderr


@LINUX
@pytest.mark.programs("bwrap")
def test_a_forgeable_header_is_refused_if_a_sandbox_reaches_this_machine(tmp_path: Path) -> None:
    options = ("--sandbox", "bwrap", "--sandbox-network", "all", "--trusted-proxies", "127.0.0.1", *HEADER)
    told = run(tmp_path, "-t", "--port", "0", *options)
    assert told.returncode == 2 and "so can commands" in told.stderr, told.stderr


@LINUX
@pytest.mark.programs("bwrap")
def test_a_forgeable_header_is_a_warning_if_commands_can_not_send_it(tmp_path: Path) -> None:
    options = ("--auth", "oauth", "--sandbox", "bwrap", "--trusted-proxies", "127.0.0.1", *HEADER)
    with site(tmp_path, *options, workspace=False) as at:
        assert "any process can set the header" in at.log()
        assert who(at, x_user="ada")[0] == 200


def test_a_proxy_on_another_machine_causes_no_warning(tmp_path: Path) -> None:
    with site(tmp_path, "--auth", "oauth", "--sandbox", "none", "--trusted-proxies", "192.0.2.1", *HEADER) as at:
        assert "header" not in at.log()


def test_a_proxy_without_its_secret_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "secret"
    file.write_text(f"{SECRET}\n")
    options = ("--sandbox", "none", "--trusted-proxies", "127.0.0.1", "--login-header-secret", str(file), *HEADER)
    with site(tmp_path / "site", "-v", "--auth", "oauth", *options) as at:
        for shown in ({}, {"x_toolgate_proxy_secret": ""}, {"x_toolgate_proxy_secret": SECRET[:-1]}):
            status, text = who(at, x_user="root-admin@corp.example", **shown)
            assert (status, "without the proxy" in text) == (403, True)
        status, text = who(at, x_user="ada@corp.example", x_toolgate_proxy_secret=SECRET)
        assert (status, "ada@corp.example" in text) == (200, True)
        assert SECRET not in text
        assert who(at)[0] == 303  # nobody yet: to the page
    assert SECRET[:-1] not in at.log()


@pytest.mark.parametrize(
    ("held", "options", "named"),
    [
        ("short", HEADER, "16 to 512"),
        (SECRET, (), "--login header=NAME"),
        (None, HEADER, "can't read"),
    ],
)
def test_a_secret_that_proves_nothing_is_refused(
    held: str | None, options: tuple[str, ...], named: str, tmp_path: Path
) -> None:
    file = tmp_path / "secret"
    if held is not None:
        file.write_text(held)
    proxies = ("--trusted-proxies", "127.0.0.1", "--login-header-secret", str(file))
    told = run(tmp_path, "-t", "--port", "0", *proxies, *options)
    assert told.returncode == 2 and "--login-header-secret" in told.stderr and named in told.stderr
    assert held is None or held not in told.stderr.replace(str(file), "")
