"""A listening server for the first page's tests, and its users: each with an account, an approved app, and a session of
that app."""

import json
import re
import time
from typing import Any

import pytest

from tests.server.auth.minted_tokens import Signed, request, session
from tests.server.auth.sign_in_server import PASSWORD, Browser
from toolgate.server.auth.login import accounts
from toolgate.server.auth.login.accounts import Accounts
from toolgate.server.base.principals.principal import derive_subject
from toolgate.server.state.rows import clients as client_rows
from toolgate.server.state.rows import grants as grant_rows


class AppUser:
    """A person with an account and an app; `app` is the app's name, `scope` what it was granted."""

    def __init__(
        self,
        signed: Signed,
        name: str,
        app: str,
        *,
        is_connected: bool = True,
        scope: str = "tools:shell tools:workflow",
    ) -> None:
        self.name, self.app, self.scope = name, app, scope
        self.client = f"client-of-{name}"
        self._signed = signed
        self._last_id = 1
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(accounts, "COST", {"time_cost": 1, "memory_cost": 64, "parallelism": 1})
            person = signed.with_store(lambda store: Accounts(store).add(name, PASSWORD))
        self._person = person
        self.subject = derive_subject(person.issuer, person.subject)
        if is_connected:
            self.approve()

    def approve(self) -> None:
        """Approve the app, as the consent page would; it opens a session."""
        jti = f"of-{self.name}-{time.time()}"
        self._signed.with_store(lambda store: store.transact(lambda connection: self._granted(connection, jti)))
        self.token = self._signed.token(self.subject, self.client, noted=False, jti=jti)
        self.session = session(self._signed, self.token)

    def move(self, signed: Signed) -> None:
        """Use a server on the same state from now on."""
        self._signed = signed
        self.approve()

    def call(self, tool: str, **arguments: Any) -> dict[str, Any]:
        """Return the call's result."""
        response, raw, said = self.ask("tools/call", {"name": tool, "arguments": arguments})
        assert response.status == 200, raw
        if said is None:
            said = json.loads(raw.decode().rpartition("data: ")[2])
        result: dict[str, Any] = said["result"]
        return result

    def run(self, command: str) -> int:
        """Start it in the background, and return the task's id."""
        text = self.call("BackgroundBash", command=command)["content"][0]["text"]
        found = re.search(r"task (\d+) started", text)
        assert found, text
        return int(found[1])

    def ask(self, method: str, params: Any = None) -> Any:
        self._last_id += 1
        told = {"authorization": f"Bearer {self.token}", "mcp_session_id": self.session}
        return self._signed.site.ask("POST", "/mcp", request(method, params, self._last_id), **told)

    @property
    def url(self) -> str:
        """The URL of the server."""
        return self._signed.site.url

    def log(self) -> str:
        """Return the log of the server."""
        return self._signed.site.log()

    def browser(self) -> Browser:
        """Return a signed-in browser without a screen."""
        browser = Browser(self._signed.site.port, {"accept": "text/html"})
        assert browser.sign_in(name=self.name).location == "/"
        return browser

    def _granted(self, connection: Any, jti: str) -> None:
        now = time.time()
        metadata = {"client_name": self.app, "redirect_uris": ["http://127.0.0.1/back"]}
        metadata |= {"token_endpoint_auth_method": "none", "grant_types": ["authorization_code", "refresh_token"]}
        row = {"kind": "dynamic", "metadata": json.dumps(metadata), "made_at": now, "fresh_until": now + 1e6}
        client_rows.save_client(connection, self.client, **row)
        person = self._person
        row = {"known_as": person.subject, "name": person.name, "seen_at": now, "email": None}
        grant_rows.save_person(connection, self.subject, issuer=person.issuer, **row)
        made = {
            "scope": self.scope,
            "resource": f"{self._signed.issuer}/mcp",
            "redirect_uri": "http://127.0.0.1/back",
        }
        id = grant_rows.add_grant(connection, now, 900, client=self.client, subject=self.subject, used_at=now, **made)
        row = {"client": self.client, "subject": self.subject, "grant_id": id, "expires_at": now + 900}
        grant_rows.add_access_token(connection, jti=jti, **row)
