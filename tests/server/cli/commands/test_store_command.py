"""Commands on a state that belongs to a service's user, when root runs them."""

import os
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from toolgate.server.base.errors import UsageError
from toolgate.server.cli.commands import backup, oauth_client, user, workspace
from toolgate.server.config import load
from toolgate.server.config.load import Config
from toolgate.server.features.telemetry.commands import audit

pytestmark = pytest.mark.skipif(os.getuid() != 0, reason="only root can give a folder away")

COMMANDS: list[Callable[[Config], int]] = [
    user.list_users,
    oauth_client.list_grants,
    partial(oauth_client.rotate_key, drop_old=True),
    oauth_client.revoke_all,
    workspace.list_workspaces,
    partial(backup.backup, file="b", with_workspaces=False),
    partial(backup.restore, file="b", replace=True),
    audit.show,
    audit.verify,
]


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("is_named", [True, False])
def test_root_is_told_which_user_to_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: Callable[[Config], int], is_named: bool
) -> None:
    """Root's own state would be empty: `token list` must not say that there are none."""
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    os.chown(theirs, 65534, 65534)
    monkeypatch.setattr(load, "SYSTEM_STATE", theirs)
    config = load.load({"state": str(theirs)} if is_named else {}, {"HOME": str(tmp_path)})
    with pytest.raises(UsageError, match=f"{theirs} belongs to user nobody: run this as .*: runuser -u nobody -- tool"):
        command(config)
    assert list(theirs.iterdir()) == []


def test_root_uses_a_state_of_its_own_beside_that_of_a_service(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    theirs, own = tmp_path / "theirs", tmp_path / ".local" / "share" / "toolgate"
    for folder in (theirs, own):
        folder.mkdir(parents=True)
    os.chown(theirs, 65534, 65534)
    monkeypatch.setattr(load, "SYSTEM_STATE", theirs)
    assert user.list_users(load.load({}, {"HOME": str(tmp_path)})) == 0
    assert "no accounts yet" in capsys.readouterr().err
