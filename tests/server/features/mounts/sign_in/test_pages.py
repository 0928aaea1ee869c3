"""A person who is away at the authorization server while things change here, and a server without pages."""

from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import httpx
import pytest

from tests.clients.raw_client import Server, eventually
from tests.server.auth.minted_tokens import asked, signed_site
from tests.server.auth.outside_issuer import outside_issuer
from tests.server.features.mounts.mounted import url_mount, write_config
from tests.server.features.mounts.sign_in.far_sign_in import FarSignIn
from tests.server.features.mounts.sign_in.test_sign_in import AUTH, Scene, come_back
from tests.server.features.mounts.sign_in.test_sign_in import far as far
from tests.server.features.mounts.sign_in.test_sign_in import lines as lines
from tests.server.features.mounts.sign_in.test_sign_in import scene as scene
from tests.server.state.each_store import with_store
from tests.servers import forked_command
from tests.servers.forked_command import COMMAND
from toolgate.server.features.mounts.config.mount_config import MountConfig
from toolgate.server.features.mounts.sign_in.flow import MountSignIn
from toolgate.server.features.mounts.sign_in.store import DEPARTURE, ConnectionStore
from toolgate.server.state.keys.sealing_keys import KeyFolder

PUBLIC_URL = "https://here.example"


@pytest.mark.parametrize(("seconds", "status"), [(DEPARTURE - 60, 200), (DEPARTURE, 400)])
def test_a_state_counts_for_ten_minutes(scene: Scene, seconds: float, status: int) -> None:
    browser = scene.ada.browser()
    answer = scene.visit(scene.leave(browser).location)
    scene.change(f"UPDATE mount_departure SET until = until - {seconds}")
    back = come_back(browser, answer)
    assert (back.status, "begin again" in back.text) == (status, status == 400)
    assert len(scene.far.access) == (1 if status == 200 else 0)


@pytest.mark.parametrize(("path", "status"), [("", 404), ("/other", 502)])
def test_one_who_comes_back_for_a_server_that_is_gone_connects_nothing(
    scene: Scene, tmp_path: Path, path: str, status: int
) -> None:
    browser = scene.ada.browser()
    answer = scene.visit(scene.leave(browser).location)
    write_config(tmp_path, url_mount(f"{scene.far.origin}{path}", "far", *AUTH) if path else "")
    assert eventually(lambda: browser.get("/mounts/connect?name=far").status == status)
    back = come_back(browser, answer)
    assert (back.status, "is not mounted any more: nothing was connected" in back.text) == (400, True)
    assert not scene.far.access


def test_the_url_of_our_document_is_our_client_where_the_authorization_server_takes_it(
    far: FarSignIn, tmp_path: Path
) -> None:
    far.metadata = {"client_id_metadata_document_supported": True}

    async def body(store: Any) -> None:
        async def find_secret(_: MountConfig) -> str:
            return ""

        connections = ConnectionStore(store, KeyFolder(tmp_path / "keys"))
        config = MountConfig(name="far", url=f"{far.origin}/mcp", auth="oauth")
        sign_in = MountSignIn(config, "digest", connections, PUBLIC_URL, "here", find_secret)
        location = await sign_in.begin("ada", (await sign_in.find("ada")).digest)
        asked = dict(parse_qsl(urlsplit(location).query))
        assert asked["client_id"] == f"{PUBLIC_URL}/mounts/client.json"
        async with httpx.AsyncClient() as browser:
            back = dict(parse_qsl(urlsplit((await browser.get(location)).headers["location"]).query))
        departure = await connections.take_departure("ada", back["state"])
        assert departure is not None
        await sign_in.complete("ada", departure, back)
        held = await connections.find("ada", "far")
        assert held is not None and held.signed_in is not None
        assert (held.signed_in.client.id, held.signed_in.access_token) == (asked["client_id"], far.last)
        assert far.registered == []

    with_store(tmp_path, body)


def read_mount_log(state: Path) -> str:
    words = [COMMAND, "mount", "logs", "far", "--state", str(state)]
    return forked_command.run(words, "", cwd=state, env={"PATH": "/usr/bin:/bin"}).stdout


NO_PAGE = "SIGN_IN_REQUIRED: it wants a sign-in, for which there is no page over stdio or with an outside issuer"


def test_a_server_over_stdio_says_that_it_has_no_page(
    start: Callable[..., Server], far: FarSignIn, tmp_path: Path
) -> None:
    server = start(*write_config(tmp_path, url_mount(f"{far.origin}/mcp", "far", *AUTH)))
    server.request("tools/list")
    assert eventually(lambda: NO_PAGE in read_mount_log(server.state))


def test_a_server_with_an_outside_issuer_says_that_it_has_no_page(far: FarSignIn, tmp_path: Path) -> None:
    options = write_config(tmp_path, url_mount(f"{far.origin}/mcp", "far", *AUTH))
    with outside_issuer() as issuer, signed_site(tmp_path / "server", "--auth", issuer.url, *options) as signed:
        token = signed.token(iss=issuer.url, key=issuer.key, typ="JWT")
        assert asked(signed, token, "tools/list")[0].status == 200
        assert eventually(lambda: NO_PAGE in read_mount_log(signed.site.state))
