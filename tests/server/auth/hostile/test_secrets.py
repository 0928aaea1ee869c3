"""A server's day at debug level, honest and hostile, leaves no secret in anything it wrote."""

import json
from pathlib import Path

import pytest

from tests.folder_contents import read_files
from tests.server.auth.authorization_in_process import basic
from tests.server.auth.hostile.target import ADA, PASSWORD, Target, paired, target_site
from tests.server.auth.minted_tokens import asked, session


def test_sec_06_mcp_12_no_secret_is_in_any_log_or_file(tmp_path: Path) -> None:
    with target_site(tmp_path / "told", "--logs", str(tmp_path / "logs")) as target:
        code = paired(target)
        held = target.granted()
        target.learn(held["access_token"], held["refresh_token"])
        _use(target, held)
        _misuse(target, held)
        target.learn("a wrong passphrase", "not-a-secret-of-anyone")
        target.assert_no_secret_is_written()
        written = "".join(path.read_text() for path in (tmp_path / "logs").iterdir())
        assert " DEBUG " in target.log()
        for secret in target.known:
            part = secret.rpartition(".")[2] if secret.count(".") == 2 else secret
            assert part not in written
        for text in (target.log(), written):  # one line is meant to show it, with a link that has it, too
            assert [line.count(code) for line in text.splitlines() if code in line] == [2]
        files = read_files(target.signed.site.state)
        target.known = {code, PASSWORD, ADA * 9}
        with pytest.raises(AssertionError, match="a secret is in the log"):  # it would have been found
            target.assert_no_secret_is_written()
        assert all(code.replace("-", "").encode() not in content for content in files.values())


def _use(target: Target, held: dict[str, str]) -> None:
    token = held["access_token"]
    assert target.works(token)
    session(target.signed, token)
    asked(target.signed, token, "tools/list")
    assert target.refresh(held["refresh_token"]).status == 200
    assert target.browser().sign_in("/login", ADA, PASSWORD).status == 303
    id, secret = target.confidential
    assert target.form("/introspect", {"token": token}, **basic(id, secret)).status == 200


def _misuse(target: Target, held: dict[str, str]) -> None:
    """Send secrets in the places that logs are most likely to record."""
    token, refresh = held["access_token"], held["refresh_token"]
    id, secret = target.confidential
    browser = target.browser()
    for path in ("/mcp", "/token", "/authorize", "/login", "/callback", "/nowhere", "/messages", f"/{token}"):
        browser.get(f"{path}?access_token={token}&code={refresh}&client_secret={secret}&state=s")
        browser.post(path, {"code": refresh, "client_secret": secret, "password": PASSWORD, "token": token})
    browser.sign_in("/login", ADA, "a wrong passphrase")
    browser.sign_in("/login", PASSWORD, PASSWORD)  # typed into the wrong field
    for body in (json.dumps({"client_name": token, "client_secret": secret}).encode(), refresh.encode()):
        target.posted("/register", body)
    target.form("/token", {"grant_type": token, "client_id": secret, "refresh_token": refresh, "scope": token})
    target.form("/revoke", {"token": f"{token}x", "client_id": target.client, "token_type_hint": refresh})
    target.form("/token", {"grant_type": "refresh_token", "refresh_token": "x"}, **basic(id, f"{secret}x"))
    for header in (f"Bearer {token}x", f"Basic {secret}", f"{token}"):
        target.signed.site.ask("POST", "/mcp", b"{", authorization=header)
    target.signed.site.ask("POST", "/mcp", token.encode(), authorization=f"Bearer {token}")
    target.raw(f"GET /?{token} HTTP/9.9\r\nAuthorization: {refresh}\r\nCookie: {secret}\r\n\r\n".encode())
    target.raw(f"{token}\r\n\r\n".encode())
