"""Whoever sets a secret of their own has their apps told of what it opens."""

import asyncio

from tests.server.features.mounts.kept_secrets.test_page_part import Scene, far, scene
from tests.server.features.mounts.kept_secrets.test_secrets import set_secret
from tests.server.features.mounts.sign_in.app import App, run

__all__ = ["far", "scene"]  # fixtures


def test_the_apps_of_its_person_are_told_of_the_tools_that_it_opens(scene: Scene) -> None:
    set_secret(scene.state, "OTHER", "of-everybody")

    async def main() -> None:
        async with App(scene, "legacy", None).open() as app:
            assert await app.list_far() == set()
            app.changed.clear()
            assert (await asyncio.to_thread(scene.connect, scene.ada)).status == 200
            await app.changed.wait()
            assert "far__headers" in await app.list_far()

    run(main())
