"""Two servers on one state: what a person does at one of them is known at the other at once."""

import asyncio
import contextlib
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.clients.raw_client import eventually
from tests.server.auth.minted_tokens import Signed
from tests.server.auth.sign_in_server import Browser
from tests.server.features.mounts.kept_secrets.test_page_part import VALUE
from tests.server.features.mounts.mounted import far_site, url_mount, write_config
from tests.server.features.mounts.sign_in.app import App, run
from tests.server.features.mounts.sign_in.far_sign_in import FarSignIn, far_sign_in
from tests.server.features.mounts.sign_in.test_elicitation_on_replicas import connect_at
from tests.server.features.mounts.sign_in.test_sign_in import AUTH, CONNECT, Scene
from tests.servers.home_page_server import AppUser
from tests.servers.postgres import Postgres
from tests.servers.replicas import running_replicas
from tests.transports.web.test_home import _csrf as find_csrf


@contextlib.contextmanager
def replicated(folder: Path, postgres: Postgres, table: str, far: FarSignIn) -> Iterator[tuple[Scene, Signed]]:
    """Run two servers. Yield what is at the first, and the second."""
    with running_replicas(folder, postgres, "--auth", "oauth", *write_config(folder, table)) as replicas:
        first, second = (Signed(site, replicas.public_url) for site in replicas.sites)
        yield Scene(first, far), second


@contextlib.contextmanager
def replicated_sign_in(folder: Path, postgres: Postgres) -> Iterator[tuple[Scene, Signed]]:
    with far_sign_in() as far:
        table = url_mount(f"{far.origin}/mcp", "far", *AUTH, 'on_change = "allow"')
        with replicated(folder, postgres, table, far) as opened:
            yield opened


def press(port: int, **fields: str) -> None:
    """Send a form of the first page at a server."""
    browser = Browser(port, {"accept": "text/html"})
    assert browser.sign_in(name="ada").location == "/"
    answer = browser.post("/", {"csrf": find_csrf(browser.get("/").text), **fields})
    assert answer.status == 200, answer.text


def test_apps_hear_of_a_sign_in_at_another_server(tmp_path: Path, postgres: Postgres) -> None:
    async def main(scene: Scene, other: int) -> None:
        async with App(scene, "legacy", None).open() as app:
            assert await app.list_far() == {CONNECT}
            for subject, listed in (("ada-there", "far__of_ada_there"), ("ada-two", "far__of_ada_two")):
                app.changed.clear()
                scene.far.subject = subject
                await asyncio.to_thread(connect_at, scene, other)
                await app.changed.wait()
                assert await app.list_far() == {"far__whoami", listed}
                assert await app.call() == subject

    with replicated_sign_in(tmp_path, postgres) as (scene, other):
        run(main(scene, other.site.port))


@pytest.mark.soak  # as of a sign-in, and on one server in kept_secrets/test_list_changes.py
def test_apps_hear_of_a_secret_that_is_set_at_another_server(tmp_path: Path, postgres: Postgres) -> None:
    async def main(scene: Scene, other: int) -> None:
        async with App(scene, "legacy", None).open() as app:
            assert await app.list_far() == set()
            app.changed.clear()
            await asyncio.to_thread(press, other, **{"keep-secret": "KEY", "secret-value": VALUE})
            await app.changed.wait()
            assert "far__headers" in await app.list_far()

    with far_site(tmp_path, "modern") as far:
        table = url_mount(far.url, "far", 'headers = { X-Far-Key = "${secret:KEY}" }', 'scope = "tools:shell"')
        with replicated(tmp_path, postgres, table, FarSignIn()) as (scene, other):
            run(main(scene, other.site.port))


def test_fifty_calls_at_the_end_of_a_token_have_results_after_one_refresh(tmp_path: Path, postgres: Postgres) -> None:
    with replicated_sign_in(tmp_path, postgres) as (scene, other):
        far = scene.far
        apps = [AppUser.__new__(AppUser) for _ in range(50)]
        for number, app in enumerate(apps):
            own = {"_signed": (scene.signed, other)[number % 2], "_last_id": 1_000 * (number + 1)}
            app.__dict__.update({**scene.ada.__dict__, **own})
        scene.connect(scene.ada)
        for app in apps[:2]:
            scene.wait_listed(app)
        far.lifetime = 2.0  # of the token that ends during the calls
        far.end_access()
        assert scene.call(scene.ada) == "ada-there"
        _, end, _ = far.access[far.last]
        far.lifetime, far.refresh_takes, before = 3600, 0.5, far.refreshes
        assert eventually(lambda: time.time() >= end)
        with ThreadPoolExecutor(len(apps)) as threads:
            said = list(threads.map(scene.call, apps))
        assert said == ["ada-there"] * 50
        assert (far.refreshes - before, far.reused) == (1, 0)
