"""The files that options name are hidden from commands: a row that forgets to say so is found here."""

from pathlib import Path

from tests.needed_features import list_deleted, require
from toolgate.server.config.load import load
from toolgate.server.config.options import OPTIONS
from toolgate.server.config.protected_paths import hidden_paths


def test_each_file_that_an_option_names_is_hidden_from_commands(tmp_path: Path) -> None:
    named = {option.name: tmp_path / option.name for option in OPTIONS if option.metavar == "FILE"}
    of_features = {"secret": "postgres", "node-certificate": "nodes", "metrics-token": "telemetry"}
    there = {name for name, feature in of_features.items() if feature not in list_deleted()}
    assert {*there, "clients", "search-keys"} <= named.keys()
    config = load({"state": str(tmp_path / "state"), **{name.replace("-", "_"): str(at) for name, at in named.items()}})
    assert set(named.values()) <= set(hidden_paths(config, tmp_path / "state"))


def test_the_file_of_a_url_is_hidden_from_commands(tmp_path: Path) -> None:
    require("postgres")
    require("replicas")
    urls = {"database": "postgresql://ada:pw@db/toolgate", "redis": "redis://:pw@keys"}
    for name, url in urls.items():
        (tmp_path / name).write_text(url)
    config = load({"state": str(tmp_path / "state"), **{name: f"file:{tmp_path / name}" for name in urls}})
    assert {tmp_path / name for name in urls} <= set(hidden_paths(config, tmp_path / "state"))


def test_the_config_file_is_hidden_from_commands(tmp_path: Path) -> None:
    named = tmp_path / "named.toml"
    named.touch()
    state, home = str(tmp_path / "state"), {"HOME": str(tmp_path)}
    assert tmp_path / ".config/toolgate" in hidden_paths(load({"state": state}, home), tmp_path / "state")
    config = load({"state": state, "config": str(named)}, home)
    assert {tmp_path / ".config/toolgate", named} <= set(hidden_paths(config, tmp_path / "state"))
