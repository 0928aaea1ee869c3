"""A slot makes its part at its first use. A feature may take it once before, and wraps or replaces the default."""

import os
from pathlib import Path

import pytest

from toolgate.server.app.host import AppHost
from toolgate.server.app.slot import SlotError
from toolgate.server.config import load


def build_app_host(folder: Path) -> AppHost:
    return AppHost(load.load({"state": str(folder)}, {}))


def test_a_part_is_made_at_the_first_use_and_stays(tmp_path: Path) -> None:
    host = build_app_host(tmp_path / "state")
    assert not host.folder.is_made and not (tmp_path / "state").exists()
    assert host.folder() == tmp_path / "state" and (tmp_path / "state").is_dir()
    (tmp_path / "state" / "keys").rmdir()
    assert host.folder() == tmp_path / "state" and not (tmp_path / "state" / "keys").exists()


def test_a_feature_wraps_the_default_which_is_made_only_if_it_asks(tmp_path: Path) -> None:
    host = build_app_host(tmp_path / "state")
    host.folder.take(lambda default: default() / "inner")
    host.where.take(lambda _: "elsewhere")
    host.root.take(lambda _: pytest.fail("nobody uses this part"))
    assert not host.folder.is_made and not (tmp_path / "state").exists()
    assert (host.folder(), host.where()) == (tmp_path / "state" / "inner", "elsewhere")
    assert (tmp_path / "state").is_dir() and not host.root.is_made


def test_other_parts_get_what_a_feature_put_into_the_slot(tmp_path: Path) -> None:
    host = build_app_host(tmp_path)
    host.folder.take(lambda default: default() / "inner")
    (tmp_path / "inner").mkdir()
    descriptor = host.lock()
    assert os.path.samestat(os.fstat(descriptor), (tmp_path / "inner").stat())
    os.close(descriptor)


def test_a_slot_is_taken_once(tmp_path: Path) -> None:
    host = build_app_host(tmp_path)
    host.where.take(lambda _: "first")
    with pytest.raises(SlotError, match="the slot where is taken already"):
        host.where.take(lambda _: "second")
    assert host.where() == "first"


def test_a_part_that_needs_itself_is_refused(tmp_path: Path) -> None:
    host = build_app_host(tmp_path)
    host.folder.take(lambda _: tmp_path / host.where())
    host.where.take(lambda _: str(host.folder()))
    with pytest.raises(SlotError, match="the part of the slot where needs itself"):
        host.where()


def test_a_part_that_is_made_is_not_replaced(tmp_path: Path) -> None:
    host = build_app_host(tmp_path)
    before = host.where()
    with pytest.raises(SlotError, match="the slot where is in use already"):
        host.where.take(lambda _: "late")
    assert host.where() == before
