"""Two servers on one state: a call waits at one of them, and the person comes back to the other."""

import asyncio
from pathlib import Path

import pytest

from tests.clients.raw_client import STATELESS
from tests.server.auth.minted_tokens import Signed
from tests.server.auth.sign_in_server import Browser
from tests.server.features.mounts.mounted import url_mount, write_config
from tests.server.features.mounts.sign_in.app import accept, both_eras, open_app, run
from tests.server.features.mounts.sign_in.far_sign_in import far_sign_in
from tests.server.features.mounts.sign_in.test_sign_in import AUTH, Scene, come_back
from tests.servers.postgres import Postgres
from tests.servers.replicas import running_replicas


def connect_at(scene: Scene, port: int) -> None:
    """Connect the mount at the server that listens at a port."""
    browser = Browser(port, {"accept": "text/html"})
    assert browser.sign_in(name="ada").location == "/"
    assert come_back(browser, scene.visit(scene.leave(browser).location)).status == 200


@pytest.mark.brief(STATELESS)  # test_elicitation.py has both on one server
@both_eras
def test_a_call_goes_on_when_its_person_comes_back_to_another_server(
    tmp_path: Path, postgres: Postgres, mode: str
) -> None:
    async def main(scene: Scene, other: int) -> None:
        async with open_app(scene, mode, accept) as app:
            for number in (1, 2):  # without a connection, and with too few rights
                calling = asyncio.create_task(app.call())
                await app.is_asked.wait()
                await asyncio.to_thread(connect_at, scene, other)
                assert await calling == "ada-there" and len(app.asked) == number
                scene.far.needed_scope = "write"
                app.is_asked.clear()

    with far_sign_in() as far:
        options = ("--auth", "oauth", *write_config(tmp_path, url_mount(f"{far.origin}/mcp", "far", *AUTH)))
        with running_replicas(tmp_path, postgres, *options) as replicas:
            scene = Scene(Signed(replicas.sites[0], replicas.public_url), far)
            run(main(scene, replicas.ports[1]))
