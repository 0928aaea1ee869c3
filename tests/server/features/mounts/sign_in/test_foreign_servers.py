"""People sign in at mounted servers and authorization servers of others, by real clients: those that open links, and
those that get the link as text."""

import contextlib
from collections.abc import Callable, Iterator

import pytest

from tests.clients.raw_client import STATELESS, eventually
from tests.interop.official_clients import crossed
from tests.interop.test_sign_in_links import talk
from tests.server.features.mounts.sign_in.app import connect, disconnect, open_app, run
from tests.server.features.mounts.sign_in.foreign_servers import KINDS, QUICK, ForeignScene, scene_with


def call_by_python(scene: ForeignScene, mode: str) -> None:
    async def main() -> None:
        async with open_app(scene, mode, connect, f"far__{scene.far.tool}", **scene.far.arguments) as app:
            assert await app.call() == scene.far.text, scene.far.log()
            (asked,) = app.asked
            assert asked.url == scene.link
            assert app.completed == ([asked.elicitation_id] if mode == "legacy" else [])
            assert await app.call() == scene.far.text and len(app.asked) == 1

    run(main())


def call_without_links(scene: ForeignScene, mode: str) -> None:
    async def main() -> None:
        async with open_app(scene, mode, None, f"far__{scene.far.tool}", **scene.far.arguments) as app:
            assert await app.call() == f"SIGN_IN_REQUIRED: connect it at {scene.link}, then try once more"
            await app.connect()
            assert await app.call() == scene.far.text, scene.far.log()

    run(main())


def call_by_typescript(scene: ForeignScene, mode: str) -> None:
    said, opened = talk(scene, mode, f"far__{scene.far.tool}", **scene.far.arguments)
    assert [result["content"][0]["text"] for result in said["results"]] == [scene.far.text] * 2, scene.far.log()
    assert [each["url"] for each in opened] == [scene.link]


CLIENTS = {
    "Python": (call_by_python, "legacy"),
    "TypeScript": (call_by_typescript, STATELESS),
    "text": (call_without_links, "legacy"),
    "Python, stateless": (call_by_python, STATELESS),
    "TypeScript, legacy": (call_by_typescript, "legacy"),
    "text, stateless": (call_without_links, STATELESS),
}


@pytest.fixture(scope="module")
def open_scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], ForeignScene]]:
    """Return what opens a server of a kind, and keeps it until another is opened."""
    opened: dict[str, ForeignScene] = {}
    with contextlib.ExitStack() as stack:

        def find(kind: str) -> ForeignScene:
            if kind not in opened:
                stack.close()
                opened.clear()
                opened[kind] = stack.enter_context(scene_with(kind, tmp_path_factory.mktemp("foreign")))
            return opened[kind]

        yield find


@pytest.mark.parametrize("kind", ["oidc-provider", pytest.param("Authlib", marks=pytest.mark.soak)])
def test_a_server_that_detects_the_reuse_of_refresh_tokens_sees_none(
    open_scene: Callable[[str], ForeignScene], kind: str
) -> None:
    scene = open_scene(kind)
    scene.connect(scene.ada)
    assert eventually(scene.is_listed), scene.ada.log()

    def is_refreshed() -> bool:
        assert scene.call() == "ada", scene.far.log()
        return scene.far.log().count("grant.success refresh_token") >= 2

    assert eventually(is_refreshed), scene.far.log()
    assert "grant.error" not in scene.far.log() and "grant.revoked" not in scene.far.log()
    disconnect(scene.ada)
    assert eventually(lambda: "grant.revoked" in scene.far.log()), scene.far.log()


@pytest.mark.parametrize(("kind", "client"), crossed([*KINDS], [*CLIENTS], KINDS.keys() - QUICK))
def test_a_call_has_its_person_sign_in_at_a_server_of_others(
    open_scene: Callable[[str], ForeignScene], kind: str, client: str
) -> None:
    scene = open_scene(kind)
    call, mode = CLIENTS[client]
    call(scene, mode)
    disconnect(scene.ada)
