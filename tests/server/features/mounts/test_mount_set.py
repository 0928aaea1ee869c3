"""The mounts of a server follow the config file, whoever owns it."""

import asyncio
import os
from pathlib import Path

import pytest

from toolgate.server.config.load import load
from toolgate.server.features.mounts.config.mount_config import MountConfig
from toolgate.server.features.mounts.config.table import read_own_mounts
from toolgate.server.features.mounts.mount_set import MountSet
from toolgate.server.features.mounts.parts.views import ServedMount


def test_a_file_of_another_user_is_followed_and_a_broken_one_changes_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    asked: list[str] = []

    def create(config: MountConfig) -> ServedMount:
        asked.append(config.name)
        raise LookupError  # what is made of it is another test's

    async def close(_: ServedMount) -> None:
        raise AssertionError("there is none")

    file = tmp_path / "config.toml"
    file.write_text("")
    if os.geteuid() == 0:
        os.chown(file, 1000, 1000)  # as root's file is for a service with a user of its own
    config = load({"config": str(file)}, {"HOME": str(tmp_path)})

    async def prepare(_: object) -> None: ...

    mounts = MountSet(create, close, lambda: None, prepare)
    asyncio.run(mounts.apply(read_own_mounts(config)))
    file.write_text("[mounts.a]\ncommand = 'x'\n")
    with pytest.raises(LookupError):
        asyncio.run(mounts.follow(config))
    assert asked == ["a"]
    for text in ("[mounts", "[mounts]\ncommand = 'x'\n", "prot = 1\n"):
        file.write_text(text)
        caplog.clear()
        asyncio.run(mounts.follow(config))
        assert asked == ["a"] and "the mounts stay as they are" in caplog.text
        caplog.clear()
        asyncio.run(mounts.follow(config))
        assert caplog.text == ""  # a log beside the file would be another change, for ever
