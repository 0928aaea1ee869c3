"""`--plugins`: folders, files, and `builtin:NAME` for the plugins that come with the server."""

import json
import shutil
from pathlib import Path

import pytest

from tests.clients.raw_client import ROOT
from tests.server.cli.test_cli import run
from toolgate.server.config.plugin_paths import list_shipped, split_plugin_paths


def test_each_shipped_plugin_loads_by_its_name(tmp_path: Path) -> None:
    assert list_shipped(), "there are some"
    words = [word for name in list_shipped() for word in ("-p", f"builtin:{name}")]
    told = run(tmp_path, "doctor", "--json", *words)
    (plugins,) = (check for check in json.loads(told.stdout)["checks"] if check["name"] == "plugins")
    assert plugins["verdict"] == "ok", plugins


def test_an_unknown_name_is_refused_with_the_names_there_are(tmp_path: Path) -> None:
    told = run(tmp_path, "tools", "-p", "builtin:wether")
    assert told.returncode == 2
    assert "'builtin:wether' (did you mean weather?); there are blog_search, " in told.stderr
    for word in ("builtin:", "builtin:../server", "builtin:weather.py", "builtin:/etc"):
        assert run(tmp_path, "tools", "-p", word).returncode == 2


def test_a_file_is_a_plugin_of_its_own(tmp_path: Path) -> None:
    folder = tmp_path / "both"
    folder.mkdir()
    for name in ("sleep.py", "quotes.py"):
        shutil.copy(ROOT / "plugins" / name, folder)
    (tmp_path / "notes.md").write_text("no program")
    told = run(tmp_path, "tools", "-p", str(folder / "sleep.py"), "-p", "builtin:weather")
    assert told.returncode == 0
    assert "\nsleep(" in told.stdout and "\nget_weather(" in told.stdout and "bacio:///quote" not in told.stdout
    refused = run(tmp_path, "tools", "-p", "notes.md")
    assert (refused.returncode, refused.stdout) == (2, "") and "its name must end in .py" in refused.stderr


@pytest.mark.parametrize(
    ("word", "items"),
    [
        ("/a:/b", ["/a", "/b"]),
        ("builtin:files", ["builtin:files"]),
        ("/a:builtin:files:b", ["/a", "builtin:files", "b"]),
        ("./builtin:files", ["./builtin", "files"]),
    ],
)
def test_a_colon_separates_except_behind_builtin(word: str, items: list[str]) -> None:
    assert split_plugin_paths(word) == items
