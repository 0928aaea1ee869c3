"""The pages in the states that people meet them in, for pictures and checks: `python -m tests.transports.web.screens`
writes docs/pictures."""

import contextlib
import io
import json
import tempfile
import time
import urllib.parse
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from tests.clients import chromium as chromium_client
from tests.clients.chromium import NOTIFICATIONS, browser, people
from tests.clients.raw_client import ROOT
from tests.server.auth.authorization_in_process import challenge
from tests.server.auth.minted_tokens import Signed, signed_site
from tests.server.auth.sign_in_server import PASSWORD
from tests.servers.home_page_server import AppUser
from toolgate.server.auth.login import accounts
from toolgate.server.auth.login.accounts import Accounts
from toolgate.server.auth.tokens.access_tokens import OWN_ISSUER
from toolgate.server.base.principals.principal import Principal
from toolgate.server.state.rows import clients as client_rows
from toolgate.server.state.rows import grants as grant_rows
from toolgate.server.state.store import Store

FOLDER = ROOT / "docs" / "pictures"
SIZES = ("desktop", "phone")
LOOKS = [(size, scheme) for size in SIZES for scheme in ("light", "dark")]
IN_SIGHT = ("consent", "consent-local")  # shown as far as a person sees without scrolling: the answers stay in sight
RULES = ("--approve", "Bash(rm *),Bash(git push*)")
QUESTION = {
    "question": "Which database should the shop use?",
    "header": "Database",
    "options": [
        {"label": "SQLite", "description": "One file, no server. Enough for a few hundred orders a day."},
        {"label": "PostgreSQL", "description": "A server of its own. Several processes can write at the same time."},
    ],
}
COMMAND = "cd shop &&\n  rm -rf build dist &&\n  git push --force origin main"


class Shop:
    """A server with three people: ada has much running, bob is asked two things, eve has connected no app."""

    def __init__(self, signed: Signed, empty: Signed) -> None:
        self.signed = signed
        self.empty_url = empty.site.url  # of a server without accounts
        self.url = signed.site.url
        self.ada, self.bob = AppUser(signed, "ada", "Claude"), AppUser(signed, "bob", "Cursor")
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(accounts, "COST", {"time_cost": 1, "memory_cost": 64, "parallelism": 1})
            signed.with_store(lambda store: Accounts(store).add("eve", PASSWORD))
        for id, kind, name, back in (
            ("https://claude.ai/oauth/client.json", "document", "Claude", "https://claude.ai/api/mcp/auth_callback"),
            ("loopback", "dynamic", "Claude Code", "http://127.0.0.1/callback"),
        ):
            metadata = {"client_name": name, "redirect_uris": [back], "token_endpoint_auth_method": "none"}
            metadata |= {"grant_types": ["authorization_code", "refresh_token"]}
            row = {"metadata": json.dumps(metadata), "made_at": time.time(), "fresh_until": time.time() + 1e6}
            self._save(id, kind, row)
        self._fill()

    def _save(self, id: str, kind: str, row: dict[str, Any]) -> None:
        self.signed.with_store(
            lambda store: store.transact(lambda connection: client_rows.save_client(connection, id, kind=kind, **row))
        )

    def _fill(self) -> None:
        ada = self.ada
        for step in ("write the tests", "draw charts", "publish"):
            ada.call("TaskManager", action="create" if step == "write the tests" else "add", query="", text=step)
        ada.call("Bash", command="uname -s")
        ada.run("for n in 1 2 3; do echo test $n passed; done; exec sleep 600")
        ada.run("echo built; exit 0")
        ada.call("SetCallback", action="set", message="look at the build", delay_seconds=600)
        self.signed.with_store(lambda store: store.transact(partial(self._subscribe, store)))
        self.bob.call("AskUserQuestion", questions_json=json.dumps({"questions": [QUESTION]}))
        self.bob.call("Bash", command=COMMAND)

    def _subscribe(self, store: Store, connection: Any) -> None:
        """Store what ada's app waits for: a webhook that works, one that fails, and a poll."""
        from toolgate.server.features.events.delivery.subscription_rows import StoredSubscription, SubscriptionRows
        from toolgate.server.features.events.log.rows import EventFilter, EventLimits, EventRows, Occurrence

        rows = EventRows(store, EventLimits(), time.time)
        subscriptions, name = SubscriptionRows(rows), Principal(OWN_ISSUER, self.ada.subject, "").name
        (grant,) = grant_rows.list_unrevoked_grants(connection, client=self.ada.client)
        for id, type, arguments in (("sub_1", "command.ended", "{}"), ("sub_2", "file.changed", '{"path":"notes.md"}')):
            url, now = "https://hooks.example.com/x", time.time()
            fresh = StoredSubscription(
                id, name, "", f'"{grant.id}"', url, type, arguments, "", expires_at=now + 6e4, made_at=now
            )
            made, begin, _ = subscriptions.begin(connection, fresh, None, 0.0, 9)
            subscriptions.activate(connection, made, begin, 0.0)
        for _ in range(3):
            subscriptions.note_success(connection, "sub_1", is_event=True)
        wanted = EventFilter(name, "file.changed", '{"path":"notes.md"}')
        rows.read_page(connection, wanted, None, 1)
        rows.record(connection, Occurrence(name, wanted.type, "evt_1", b'{"path":"notes.md"}'))
        subscriptions.postpone(connection, "sub_2", "evt_1", time.time() + 600)
        subscriptions.note_failure(connection, "sub_2", "http_5xx")

    def consent(self, client: str, back: str) -> str:
        """Return the URL by which an app asks for access."""
        query = {"client_id": client, "redirect_uri": back, "response_type": "code", "state": "s-1"}
        query |= {"code_challenge": challenge(), "code_challenge_method": "S256"}
        return f"{self.url}/authorize?{urllib.parse.urlencode(query)}"


@contextlib.contextmanager
def shop() -> Iterator[Shop]:
    """Run the server, with a sandbox for each person: what each can reach is on the pages."""
    with tempfile.TemporaryDirectory(prefix="toolgate-") as folder:
        Path(folder).chmod(0o755)
        with (
            signed_site(Path(folder) / "shop", *RULES, workspace=False) as signed,
            signed_site(Path(folder) / "empty") as empty,
        ):
            yield Shop(signed, empty)


def sign_in(page: Any, name: str) -> None:
    page.get_by_label("Name").fill(name)
    page.get_by_label("Password").fill(PASSWORD)
    page.get_by_role("button", name="Sign in").click()


def _signed_in(page: Any, shop: Shop, name: str, path: str = "/") -> None:
    page.add_init_script(NOTIFICATIONS)  # a browser without a screen would show no button for them
    page.goto(f"{shop.url}/login")
    sign_in(page, name)
    page.wait_for_url(f"{shop.url}/")
    page.goto(shop.url + path)


def _welcome(page: Any, shop: Shop) -> None:
    page.goto(shop.url)


def _login(page: Any, shop: Shop) -> None:
    page.goto(f"{shop.url}/login")


def _pairing(page: Any, shop: Shop) -> None:
    page.goto(f"{shop.empty_url}/login")


def _consent(page: Any, shop: Shop) -> None:
    page.goto(shop.consent("https://claude.ai/oauth/client.json", "https://claude.ai/api/mcp/auth_callback"))
    sign_in(page, "ada")
    page.get_by_role("button", name="Approve").wait_for()


def _consent_local(page: Any, shop: Shop) -> None:
    page.goto(shop.consent("loopback", "http://127.0.0.1/callback"))
    sign_in(page, "ada")
    page.get_by_role("button", name="Approve").wait_for()


def _connect(page: Any, shop: Shop) -> None:
    _signed_in(page, shop, "eve")


def _running(page: Any, shop: Shop) -> None:
    _signed_in(page, shop, "ada")
    page.locator("#live.on").wait_for()


def _waiting(page: Any, shop: Shop) -> None:
    _signed_in(page, shop, "bob")
    page.locator("#live.on").wait_for()


def _account(page: Any, shop: Shop) -> None:
    _signed_in(page, shop, "ada", "/account")


def _confirmation(page: Any, shop: Shop) -> None:
    _account(page, shop)
    page.locator("summary", has_text="Revoke").click()


def _password(page: Any, shop: Shop) -> None:
    _account(page, shop)
    page.locator("summary", has_text="Change your password").click()


def _sign_out(page: Any, shop: Shop) -> None:
    _signed_in(page, shop, "ada", "/logout")


def _expired(page: Any, shop: Shop) -> None:
    page.goto(f"{shop.url}/consent?question=gone")


def _refused(page: Any, shop: Shop) -> None:
    page.goto(shop.consent("nobody", "https://nobody.example/back"))


def _missing(page: Any, shop: Shop) -> None:
    page.goto(f"{shop.url}/no/such/page")


def _endpoint(page: Any, shop: Shop) -> None:
    page.goto(f"{shop.url}/mcp")


SCREENS: dict[str, Callable[[Any, Shop], None]] = {  # name of the picture → what leads there
    "welcome": _welcome,
    "sign-in": _login,
    "pairing": _pairing,
    "consent": _consent,
    "consent-local": _consent_local,
    "first-connect": _connect,
    "running": _running,
    "waiting": _waiting,
    "account": _account,
    "confirmation": _confirmation,
    "password": _password,
    "sign-out": _sign_out,
    "expired": _expired,
    "refused": _refused,
    "not-found": _missing,
    "endpoint": _endpoint,
}


def look(page: Any, size: str, scheme: str) -> None:
    """Show the page at this size, in this colour scheme."""
    width, height = chromium_client.SIZES[size]
    page.set_viewport_size({"width": width, "height": height})
    page.emulate_media(color_scheme=scheme)


def main(folder: Path = FOLDER) -> None:
    """Write a picture of each screen at both sizes, light and dark."""
    folder.mkdir(exist_ok=True)
    with shop() as served, browser() as chromium, people(chromium) as arrive:
        for name, show in SCREENS.items():
            page = arrive(SIZES[0])
            show(page, served)
            for size, scheme in LOOKS:
                look(page, size, scheme)
                data = page.screenshot(full_page=name not in IN_SIGHT)
                Image.open(io.BytesIO(data)).save(folder / f"{name}-{size}-{scheme}.webp", quality=75, method=6)
            page.context.close()


if __name__ == "__main__":
    main()
