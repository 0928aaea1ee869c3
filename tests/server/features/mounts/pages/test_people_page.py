"""Administrators see all people's connections, and end one; nobody else sees that there is such a page."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.clients.raw_client import eventually
from tests.server.auth.minted_tokens import signed_site
from tests.server.auth.sign_in_server import Browser, PageAnswer
from tests.server.features.mounts.mounted import url_mount, write_config
from tests.server.features.mounts.sign_in.far_sign_in import far_sign_in
from tests.server.features.mounts.sign_in.test_sign_in import AUTH, Scene
from tests.servers.home_page_server import AppUser
from toolgate.server.cli import main
from toolgate.server.features.mounts.sign_in import rows

PATH = "/mounts/people"


class Office(Scene):
    """A server whose administrator is eve."""

    def __init__(self, *rest: Any) -> None:
        super().__init__(*rest)
        self.eve = AppUser(self.signed, "eve", "Office")

    def add_connections(self, count: int) -> None:
        """Store connections of people who are known to nobody."""

        def add(connection: Any) -> None:
            for number in range(count):
                values = {"server": "5e" * 32, "sealed": "AQ==", "expires_at": None, "refreshing_since": None}
                row = {**values, "ended": None, "made_at": 1e9}
                rows.write_connection(connection, f"u-{number:040}", "far", **row)

        self.signed.with_store(lambda store: store.transact(add))


@pytest.fixture
def office(tmp_path: Path) -> Iterator[Office]:
    with far_sign_in() as far:
        table = url_mount(f"{far.origin}/mcp", "far", *AUTH)
        options = ("--administrators", "account:eve", *write_config(tmp_path, table))
        with signed_site(tmp_path / "server", *options) as signed:
            yield Office(signed, far)


def end(browser: Browser, page: PageAnswer, which: str) -> PageAnswer:
    return browser.post(PATH, {"csrf": page.field("csrf"), "end": which})


def list_buttons(page: PageAnswer) -> list[str]:
    return re.findall(r'name="end" value="([^"]*)"', page.text)


def test_an_administrator_sees_all_connections_and_ends_one(office: Office) -> None:
    for who in (office.ada, office.bob):
        office.connect(who, f"{who.name}-there")
        office.wait_listed(who)
        assert office.call(who) == f"{who.name}-there"
    boss = office.eve.browser()
    assert f'href="{PATH}"' in boss.get("/").text
    page = boss.get(PATH)
    assert page.status == 200 and page.text.count("connected</b> since") == 2
    assert "account:ada" in page.text and "account:bob" in page.text and page.text.count("· used ") == 2
    assert not [token for token in (*office.far.access, *office.far.refresh) if token in page.text]
    found = boss.get(f"{PATH}?who=AD")
    (ada,) = list_buttons(found)
    ended = end(boss, found, ada)
    assert (ended.status, "The connection was ended." in ended.text) == (200, True)
    assert "SIGN_IN_REQUIRED" in office.call(office.ada)
    assert office.call(office.bob) == "bob-there"
    told = 'connection ended: of "account:ada" at mount far, by the administrator "account:eve"'
    assert eventually(lambda: told in office.signed.site.log()), office.signed.site.log()
    assert eventually(lambda: len(office.far.revoked) == 1)
    assert end(boss, found, ada).status == 404
    assert len(list_buttons(boss.get(PATH))) == 1


def test_why_a_connection_has_ended_is_shown(office: Office) -> None:
    office.connect(office.ada)
    office.wait_listed(office.ada)
    office.far.end_access()
    office.far.refresh.clear()
    office.call(office.ada)
    assert "ended</b> it says invalid_grant" in office.eve.browser().get(PATH).text


def test_nobody_else_sees_or_posts_to_it(office: Office) -> None:
    office.connect(office.bob)
    boss, other = office.eve.browser(), office.ada.browser()
    page = boss.get(PATH)
    (bobs,) = list_buttons(page)
    assert PATH not in other.get("/").text
    assert other.get(PATH).status == other.get("/mounts/nothing").status == 404
    assert end(other, page, bobs).status == 404
    stranger = Browser(office.signed.site.port, {"accept": "text/html"})
    assert stranger.get(PATH).location.startswith("/login")
    assert end(stranger, page, bobs).location.startswith("/login")
    assert boss.post(PATH, {"csrf": "x", "end": bobs}).status == 403
    assert boss.post(PATH, {"csrf": page.field("csrf"), "end": bobs}, sec_fetch_site="cross-site").status == 403
    for wrong in ("", " ", "far", f"{bobs} more"):
        assert end(boss, page, wrong).status in (400, 404), wrong
    assert list_buttons(boss.get(PATH)) == [bobs]


@pytest.mark.parametrize("count", [1_000, pytest.param(10_000, marks=pytest.mark.soak)])
def test_many_connections_come_in_pages(office: Office, count: int) -> None:
    office.add_connections(count)
    boss = office.eve.browser()
    page = boss.get(PATH)
    first = list_buttons(page)
    following = re.search(r'href="([^"]*after=[^"]*)"', page.text)
    assert len(first) == 50 and following
    second = list_buttons(boss.get(following[1].replace("&amp;", "&")))
    assert len(second) == 50 and set(second).isdisjoint(first)
    assert len(page.body) < 100_000
    assert list_buttons(boss.get(f"{PATH}?who=nobody-has-this")) == []
    assert list_buttons(boss.get(f"{PATH}?after=x%20y%20z&who=%00")) == []


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--administrators", "eve"), "must be one of account:…"),
        (("--administrators", "account:"), "must be one of account:…"),
        (("--administrators", "github:1"), "has no effect without --login github"),
        (("--administrators", "account:eve", "--auth", "none"), "it has no effect with another --auth"),
    ],
)
def test_administrators_who_can_not_be_are_refused_at_the_start(
    words: tuple[str, ...], told: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ("-t", "--port", "0", "--state", str(tmp_path / "state"), *write_config(tmp_path, ""))
    assert main.run((*options, *words)) == 2
    assert told in capsys.readouterr().err
