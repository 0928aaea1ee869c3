"""Names of other clients as names of mounts."""

import pytest

from toolgate.server.features.mounts.config.imports.naming import choose_mount_names
from toolgate.server.features.mounts.config.table import NAME


@pytest.mark.parametrize(
    ("name", "mount"),
    [
        ("My Server", "my-server"),
        ("@scope/server-github", "server-github"),
        ("io.github.ada/web/", "web"),
        ("Größe", "groe"),
        ("7zip", "server-7zip"),
        ("a_b.c", "a-b-c"),
        ("sequential-thinking", "sequential-think"),
        ("a" * 15 + "-b", "a" * 15),
        ("工具", "server"),
        ("", "server"),
    ],
)
def test_a_name_is_made_valid(name: str, mount: str) -> None:
    assert choose_mount_names([name]) == [mount]
    assert NAME.fullmatch(mount)


def test_the_same_names_are_numbered_and_fit() -> None:
    names = choose_mount_names([*["sequential-thinking"] * 11, "A", "a", "a-2"])
    assert names[:3] == ["sequential-think", "sequential-thi-2", "sequential-thi-3"]
    assert names[10] == "sequential-th-11" and names[11:] == ["a", "a-2", "a-2-2"]
    assert len(set(names)) == len(names) and all(map(NAME.fullmatch, names))
