"""What a server writes and tells: state, log, audit, backup, metrics and pages have no secret of mounted servers."""

import base64
import contextlib
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.clients.raw_client import eventually
from tests.server.auth.minted_tokens import signed_site
from tests.server.features.mounts.kept_secrets.test_secrets import find_files_with, set_secret
from tests.server.features.mounts.mounted import far_site, url_mount, write_config
from tests.server.features.mounts.sign_in.far_sign_in import FarSignIn, far_sign_in
from tests.server.features.mounts.sign_in.test_sign_in import AUTH, Scene
from tests.servers import forked_command
from tests.servers.forked_command import COMMAND
from tests.transports.web.test_home import _csrf as find_csrf

TEAM, OWN = "sk-0123456789-of-the-team", "sk-0123456789-of-ada"
SCOPE = 'scope = "tools:shell"'
BASIC = {"token_endpoint_auth_methods_supported": ["client_secret_basic"]}


@contextlib.contextmanager
def mounted_scene(folder: Path) -> Iterator[Scene]:
    """Run a server with a mount that has a secret of the team, one that has a person's own, and one to sign in at."""
    header = 'headers = {{ X-Far-Key = "${{secret:{}}}" }}'
    with far_site(folder, "legacy") as legacy, far_site(folder, "modern") as modern, far_sign_in() as far:
        far.metadata = BASIC
        tables = (
            url_mount(legacy.url, "team", header.format("TEAM"), SCOPE),
            url_mount(modern.url, "own", header.format("OWN"), 'secrets = "own"', SCOPE),
            url_mount(f"{far.origin}/mcp", "far", *AUTH),
        )
        with signed_site(folder / "server", "--audit", "on", *write_config(folder, *tables)) as signed:
            yield Scene(signed, far)


def keep_secrets(scene: Scene) -> None:
    """Set a secret as the operator, and one as a person on the first page."""
    set_secret(scene.state, "TEAM", TEAM)
    browser = scene.ada.browser()
    form = {"csrf": find_csrf(browser.get("/").text), "keep-secret": "OWN", "secret-value": OWN}
    assert browser.post("/", form).status == 200


def use_all(scene: Scene) -> list[str]:
    """Connect, call each mount, refresh a token, and fail with what has it. Return all secrets."""
    found = {TEAM, OWN}
    keep_secrets(scene)
    assert scene.connect(scene.ada).status == 200
    scene.wait_listed(scene.ada)
    for _ in range(2):
        found |= list_tokens(scene.far)
        assert scene.call(scene.ada) == "ada-there"
        scene.far.end_access()
    assert scene.far.refreshes == 1
    assert eventually(lambda: TEAM in scene.call(scene.ada, "team__headers"))
    assert eventually(lambda: OWN in scene.call(scene.ada, "own__headers"))
    scene.far.echoes = True
    assert "debug: Bearer …" in scene.call(scene.ada)
    found |= list_tokens(scene.far)
    return sorted(found)


def list_tokens(far: FarSignIn) -> set[str]:
    """Return the tokens that it has given, and the secrets of its clients."""
    return {*far.access, *far.refresh, *far.used, *far.static.values()}


def unpack_backup(scene: Scene, folder: Path) -> Path:
    """Make a backup beside the server, and return the folder with what is in it."""
    file, unpacked = folder / "backup.tar.gz", folder / "unpacked"
    env = {"PATH": "/usr/bin:/bin", "HOME": str(folder)}
    done = forked_command.run([COMMAND, "backup", str(file), "--state", str(scene.state)], "", cwd=folder, env=env)
    assert done.returncode == 0, done
    with tarfile.open(file) as archive:
        archive.extractall(unpacked, filter="data")
    return unpacked


def list_spellings(text: str) -> list[str]:
    """Return how a secret may be written."""
    data = text.encode()
    return [text, data.hex(), base64.b64encode(data).decode().rstrip("=")]


@pytest.mark.alone
def test_nothing_that_is_written_or_told_has_a_secret(tmp_path: Path) -> None:
    with mounted_scene(tmp_path) as scene:
        known = use_all(scene)
        assert {each[:3] for each in known} == {"at-", "rt-", "cs-", "sk-"}
        unpacked = unpack_backup(scene, tmp_path)
        metrics = scene.signed.site.ask("GET", "/metrics")[1].decode()
        pages = [scene.ada.browser().get(path).text for path in ("/", "/mounts/tools?name=far", "/mounts/codes")]
    for folder in (scene.state, unpacked):
        assert find_files_with(folder / "audit", "own__headers") and find_files_with(folder, scene.far.origin)
    told = [scene.signed.site.log(), metrics, *pages]
    assert "far" in told[0] and "toolgate_mount" in metrics and "connected</b> since" in pages[0]
    for text in (spelling for each in known for spelling in list_spellings(each)):
        assert find_files_with(scene.state, text) == find_files_with(unpacked, text) == [], text
        assert [each for each in told if text in each] == [], text
