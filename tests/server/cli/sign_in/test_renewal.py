"""Renewing and ending a stored sign-in, also at servers that lie and with files that others can read."""

import asyncio
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.servers.lying_oauth_server import TOKENS, LyingServer
from toolgate.server.base.errors import UsageError
from toolgate.server.cli.mcp_client.http import SignInRequiredError
from toolgate.server.cli.sign_in.credentials import MAX_TOKEN, CredentialStore, SignIn, find_token, renew_token
from toolgate.server.cli.sign_in.main import logout
from toolgate.server.cli.sign_in.requests import MAX_BODY, LoginError
from toolgate.server.config import load


def kept(server: LyingServer, folder: Path, **values: Any) -> tuple[Any, CredentialStore, str]:
    """Store a sign-in whose token has expired. Return the options, the store and the server's URL."""
    config = load.load({}, {"HOME": str(folder)})
    store = CredentialStore(config.sign_in_folder)
    known = {"issuer": server.url, "token_endpoint": f"{server.url}/token", "revocation_endpoint": "", "client_id": "c"}
    url = f"{server.url}/mcp"
    tokens = {"access_token": "old", "expires_at": 0.0, "refresh_token": "r"}
    store.write(SignIn(**{"url": url, **known, **tokens, **values}))
    return config, store, url


def test_several_at_once_use_a_refresh_token_once(lying: LyingServer, tmp_path: Path) -> None:
    config, store, url = kept(lying, tmp_path)

    async def work() -> list[str]:
        return [found.text for found in await asyncio.gather(*(find_token(config, url) for _ in range(4)))]

    assert asyncio.run(work()) == ["new"] * 4
    assert [form["refresh_token"] for form in lying.forms] == ["r"]
    assert lying.forms[0]["resource"] == url and lying.forms[0]["client_id"] == "c"
    found = store.read(url)
    assert found is not None and found.refresh_token == "next"


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        ({"error": "invalid_grant"}, "sign in again: toolgate login "),
        ({"error": "temporarily_unavailable"}, "refuses: temporarily_unavailable"),
        ({**TOKENS, "access_token": "a\r\nb"}, "no usable access token"),
        ({**TOKENS, "refresh_token": 7}, "no usable refresh token"),
        ({**TOKENS, "access_token": "a" * 20_000}, "no usable access token"),
        ({**TOKENS, "token_type": "mac"}, "no bearer token"),
        (b"x" * (MAX_BODY + 1), "larger than"),
        ("http://127.0.0.1:1/", "HTTP 302"),
    ],
)
def test_a_bad_answer_of_the_token_endpoint_changes_nothing(
    lying: LyingServer, tmp_path: Path, answer: Any, said: str
) -> None:
    config, store, url = kept(lying, tmp_path)
    lying.answers["/token"] = answer
    with pytest.raises((LoginError, SignInRequiredError)) as refused:
        asyncio.run(find_token(config, url))
    assert said in str(refused.value)
    found = store.read(url)
    assert found is not None and (found.access_token, found.refresh_token) == ("old", "r")


def test_a_refused_token_is_renewed_and_one_without_refresh_asks_to_sign_in_again(
    lying: LyingServer, tmp_path: Path
) -> None:
    config, _, url = kept(lying, tmp_path, expires_at=time.time() + 600)
    found = asyncio.run(find_token(config, url))
    assert (found.text, lying.forms) == ("old", [])
    assert asyncio.run(renew_token(config, found)).text == "new"
    config, _, url = kept(lying, tmp_path, refresh_token="")
    with pytest.raises(SignInRequiredError, match="the access token has expired; sign in again"):
        asyncio.run(find_token(config, url))


def test_a_file_that_others_can_read_or_of_another_key_is_not_used(lying: LyingServer, tmp_path: Path) -> None:
    config, store, url = kept(lying, tmp_path)
    (file,) = config.sign_in_folder.glob("*.sealed")
    file.chmod(0o644)
    with pytest.raises(UsageError, match="can be read by others"):
        store.read(url)
    file.chmod(0o600)
    (config.sign_in_folder / "key").write_bytes(b"k" * 32)
    with pytest.raises(UsageError, match="can't be opened"):
        CredentialStore(config.sign_in_folder).read(url)


@pytest.mark.parametrize("fault", ["shared", "other key", "link", "damaged key"])
def test_signing_out_removes_tokens_that_are_no_longer_used(
    lying: LyingServer, tmp_path: Path, capsys: pytest.CaptureFixture[str], fault: str
) -> None:
    config, store, url = kept(lying, tmp_path, revocation_endpoint=f"{lying.url}/token")
    (file,) = config.sign_in_folder.glob("*.sealed")
    match fault:
        case "shared":
            file.chmod(0o644)
        case "link":
            file.rename(tmp_path / "elsewhere")
            file.symlink_to(tmp_path / "elsewhere")
        case _:
            (config.sign_in_folder / "key").write_bytes(b"k" * (32 if fault == "other key" else 31))
    with pytest.raises((UsageError, OSError)):
        CredentialStore(config.sign_in_folder).read(url)
    assert asyncio.run(logout(config, url=url)) == 0
    assert not store.has(url)
    told = capsys.readouterr()
    assert told.out == f"signed out of {url}\n"
    assert [form["token"] for form in lying.forms] == (["r"] if fault == "shared" else [])
    assert ("end the access on its account page" in told.err) == (fault != "shared")


def test_signing_out_of_a_server_that_is_gone_removes_the_tokens(
    lying: LyingServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config, store, url = kept(lying, tmp_path, revocation_endpoint="http://127.0.0.1:1/revoke")
    assert asyncio.run(logout(config, url=url)) == 0
    assert not store.has(url)
    assert "the server was not told (http://127.0.0.1:1/revoke: " in capsys.readouterr().err


def test_tokens_that_can_not_be_kept_whole_leave_nothing(lying: LyingServer, tmp_path: Path) -> None:
    config, store, url = kept(lying, tmp_path)
    lying.answers["/token"] = {**TOKENS, "access_token": "\\" * MAX_TOKEN, "refresh_token": '"' * MAX_TOKEN}
    assert asyncio.run(find_token(config, url)).text == "\\" * MAX_TOKEN
    found = store.read(url)
    assert found is not None
    names = {file.name for file in config.sign_in_folder.iterdir()}
    with pytest.raises(LoginError, match="more than a sign-in needs"):
        store.write(SignIn(**{**msgspec.structs.asdict(found), "scope": "x " * MAX_BODY}))
    next(config.sign_in_folder.glob("*.sealed")).unlink()
    next(config.sign_in_folder.glob("*.lock")).unlink()
    (config.sign_in_folder / next(name for name in names if name.endswith(".sealed"))).mkdir()
    with pytest.raises(OSError, match="directory"):
        store.write(found)
    assert {file.name for file in config.sign_in_folder.iterdir()} == {n for n in names if not n.endswith(".lock")}
