"""What a person, an operator or another sign-in ends is revoked at the far server, whatever is down meanwhile."""

from pathlib import Path

import pytest

from tests.clients.raw_client import eventually
from tests.server.features.mounts.mounted import url_mount, write_config
from tests.server.features.mounts.sign_in.app import disconnect
from tests.server.features.mounts.sign_in.far_sign_in import FarSignIn
from tests.server.features.mounts.sign_in.test_elicitation import far, scene
from tests.server.features.mounts.sign_in.test_refresh_kills import KilledServer, killed
from tests.server.features.mounts.sign_in.test_sign_in import AUTH, Scene, count_connections
from tests.servers import forked_command
from tests.servers.forked_command import COMMAND

__all__ = ["far", "killed", "scene"]  # fixtures

DUE = "UPDATE mount_connection SET expires_at = 1 WHERE mount LIKE '@ended %'"


def shows(scene: Scene, words: str) -> bool:
    return words in scene.ada.browser().get("/").text


def is_all_revoked(scene: Scene, *tokens: str) -> bool:
    return sorted(scene.far.revoked) == sorted(tokens) and count_connections(scene.state) == 0


def test_one_whose_mount_has_another_address_can_be_ended(scene: Scene, far: FarSignIn, tmp_path: Path) -> None:
    scene.connect(scene.ada)
    write_config(tmp_path, url_mount(f"{far.origin}/mcp/", "far", *AUTH))
    assert eventually(lambda: shows(scene, "its mount has another address now"))
    disconnect(scene.ada)
    assert eventually(lambda: is_all_revoked(scene, *far.refresh))
    assert shows(scene, "not connected")


def test_one_whose_mount_is_gone_can_be_ended(scene: Scene, far: FarSignIn, tmp_path: Path) -> None:
    scene.connect(scene.ada)
    write_config(tmp_path, "")
    assert eventually(lambda: shows(scene, "it is not mounted any more"))
    disconnect(scene.ada)
    assert eventually(lambda: is_all_revoked(scene, *far.refresh))


def test_one_whose_mount_is_gone_ends_with_the_account(scene: Scene, far: FarSignIn, tmp_path: Path) -> None:
    scene.connect(scene.ada)
    write_config(tmp_path, "")
    assert eventually(lambda: shows(scene, "it is not mounted any more"))
    words = [COMMAND, "user", "remove", "ada", "--state", str(scene.state)]
    assert forked_command.run(words, "", cwd=scene.state, env={"PATH": "/usr/bin:/bin"}).returncode == 0
    assert eventually(lambda: is_all_revoked(scene, *far.refresh))


def test_a_sign_in_of_another_client_ends_the_one_before(scene: Scene, far: FarSignIn, tmp_path: Path) -> None:
    """One of the same client does not: many servers would revoke the new tokens with the old ones."""
    scene.connect(scene.ada)
    scene.connect(scene.ada)
    first, second = far.refresh
    far.static = {"ours": ""}
    write_config(tmp_path, url_mount(f"{far.origin}/mcp", "far", *AUTH, 'client_id = "ours"'))
    assert eventually(lambda: "client_id=ours" in scene.leave(scene.ada.browser()).location)
    scene.connect(scene.ada)
    assert eventually(lambda: far.revoked == [second]) and first in far.refresh
    scene.wait_listed(scene.ada)
    assert scene.call(scene.ada) == "ada-there"


def test_a_revocation_that_failed_is_sent_again_after_a_kill(killed: KilledServer) -> None:
    far, scene = killed.far, killed.scene
    far.revocation_faults = [503]
    disconnect(scene.ada)
    assert eventually(lambda: not far.revocation_faults)
    killed.kill()
    assert far.revoked == [] and count_connections(scene.state) == 1
    scene.change(DUE)
    killed.start()
    assert eventually(lambda: is_all_revoked(scene, *far.refresh))


@pytest.mark.parametrize("is_old", [True, False])
def test_a_revocation_is_given_up_after_a_day(killed: KilledServer, is_old: bool) -> None:
    far, scene = killed.far, killed.scene
    far.revocation_faults = [503]
    disconnect(scene.ada)
    assert eventually(lambda: not far.revocation_faults)
    killed.kill()
    far.revocation_faults = [503]
    scene.change(DUE.replace(" WHERE", f", made_at = made_at - {86_400 if is_old else 80_000} WHERE"))
    killed.start()
    assert eventually(lambda: not far.revocation_faults)
    if is_old:
        assert eventually(lambda: count_connections(scene.state) == 0)
    else:
        killed.kill()
        assert count_connections(scene.state) == 1
