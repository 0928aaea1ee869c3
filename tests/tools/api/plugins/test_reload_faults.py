"""Loading and watching plugins survives odd names, deep folders, hanging imports and skills."""

import asyncio
import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from tests.clients.raw_client import PATIENCE, Server, eventually
from tests.needed_features import require
from toolgate.server.app.app import App
from toolgate.server.app.builtin_tools import TOOLS
from toolgate.server.base import watch
from toolgate.server.config import load
from toolgate.tools.api.plugins import discovery, loader, reload
from toolgate.tools.api.plugins.discovery import wants_isolation
from toolgate.tools.api.plugins.loader import PluginLoader, PluginLoadError
from toolgate.tools.api.plugins.reload import PluginReloader
from toolgate.tools.api.registry import Registry

Start = Callable[..., Server]

IMPORTS = "from toolgate.tools import prompt, resource, tool\n"
TOOL = '@tool(read_only=True)\nasync def {name}() -> str:\n    """Say it."""\n    return "{text}"\n'
PROMPT = '@prompt()\ndef deploy() -> str:\n    """Ask."""\n    return "of the plugin"\n'


def write(folder: Path, name: str, body: str) -> Path:
    file = folder / name
    file.parent.mkdir(parents=True, exist_ok=True)
    draft = file.with_name(f".{file.name}.draft")
    draft.write_text(IMPORTS + body)
    draft.replace(file)
    return file


def saying(text: str, name: str = "say") -> str:
    return TOOL.format(name=name, text=text)


def skill(folder: Path, name: str) -> None:
    (folder / name).mkdir(parents=True)
    (folder / name / "SKILL.md").write_text(f"---\nname: {name}\ndescription: a skill\n---\nof the skill\n")


def odd(folder: Path) -> None:
    """Make a file with a name that is not UTF-8."""
    Path(os.fsdecode(os.fsencode(folder) + b"/\xff")).touch()


def tools(server: Server) -> list[str]:
    return [tool["name"] for tool in server.request("tools/list")["tools"]]


def prompts(server: Server) -> list[str]:
    return [prompt["name"] for prompt in server.request("prompts/list")["prompts"]]


def asked(server: Server) -> str:
    text: str = server.request("prompts/get", {"name": "deploy"})["messages"][0]["content"]["text"]
    return text.partition("\n")[0]


def deep(folder: Path, depth: int) -> None:
    """Make nested folders one at a time, as a path has a maximal length."""
    folder.mkdir()
    place = os.open(folder, os.O_RDONLY)
    for _ in range(depth):
        os.mkdir("d", dir_fd=place)
        inner = os.open("d", os.O_RDONLY, dir_fd=place)
        os.close(place)
        place = inner
    os.close(place)


# -- names that are not UTF-8


def test_plugins_are_followed_after_a_name_that_is_not_utf_8(start: Start, tmp_path: Path) -> None:
    folder = tmp_path / "plugins"
    write(folder, "a.py", saying("old"))
    server = start("-p", str(folder))
    for text in ("new", "newer"):
        write(folder, "a.py", saying(text))
        assert eventually(lambda text=text: server.text("say") == text), server.log()
        odd(folder)
    Path(os.fsdecode(os.fsencode(folder) + b"/\xfe")).mkdir()
    write(folder, "b.py", saying("b", "other"))
    assert eventually(lambda: "other" in tools(server)), server.log()
    assert "can't be watched" not in server.log() and "Traceback" not in server.log()


def test_skills_are_followed_after_a_name_that_is_not_utf_8(start: Start, tmp_path: Path) -> None:
    folder = tmp_path / "skills"
    skill(folder, "one")
    server = start("--skills", str(folder))
    skill(folder, "two")
    assert eventually(lambda: "two" in prompts(server))
    odd(folder)
    skill(folder, "three")
    assert eventually(lambda: "three" in prompts(server)), server.log()
    odd(folder / "three")
    skill(folder, "four")
    assert eventually(lambda: "four" in prompts(server)), server.log()


def test_files_are_followed_after_a_name_that_is_not_utf_8(start: Start, tmp_path: Path) -> None:
    server = start()
    file = tmp_path / "work" / "notes.txt"
    file.write_text("one")
    uri = f"file://{quote(str(file))}"
    server.request("resources/subscribe", {"uri": uri})
    updated = "notifications/resources/updated"

    def told(after: Callable[[], object]) -> None:
        before = len(server.notes(updated))
        after()
        server.wait(lambda _: len(server.notes(updated)) > before)

    told(lambda: file.write_text("number two"))
    odd(file.parent)
    told(lambda: file.write_text("number three"))
    odd(file.parent)
    told(file.unlink)


def test_a_watch_of_files_that_ends_is_begun_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    from watchfiles import _rust_notify

    real, failures = _rust_notify.RustNotify, [OSError(28, "OS file watch limit reached"), LookupError("odd")]

    def failing(*given: Any) -> Any:
        if failures:
            raise failures.pop(0)
        return real(*given)

    async def body() -> None:
        monkeypatch.setattr(_rust_notify, "RustNotify", failing)
        monkeypatch.setattr(watch, "RETRY", 0.01)
        watched = watch.FileChanges(poll=0.01)
        file = tmp_path / "file"
        of = watched.follow(file)
        told = asyncio.ensure_future(anext(of))
        while failures:
            await asyncio.sleep(0)
        file.touch()
        async with asyncio.timeout(PATIENCE):
            await told
        await of.aclose()
        await watched.close()

    asyncio.run(body())
    assert "can't be watched" in caplog.text and "LookupError" in caplog.text


def test_a_link_that_leads_to_itself_does_not_end_the_watch(start: Start, tmp_path: Path) -> None:
    folder = tmp_path / "plugins"
    write(folder, "a.py", saying("old"))
    (folder / "loop").symlink_to("loop")
    server = start("-p", str(folder))
    write(folder, "a.py", saying("new"))
    assert eventually(lambda: server.text("say") == "new"), server.log()


# -- skills


def test_a_skill_that_comes_later_does_not_unload_a_plugin(start: Start, tmp_path: Path) -> None:
    folder, skills = tmp_path / "plugins", tmp_path / "work" / ".toolgate" / "skills"
    file = write(folder, "a.py", saying("fine") + PROMPT)
    server = start("-p", str(folder))
    skill(skills, "first")
    assert eventually(lambda: "first" in prompts(server))
    skill(skills, "deploy")
    assert eventually(lambda: "prompt 'deploy' of" in server.log()), server.log()
    assert asked(server) == "of the plugin" and server.text("say") == "fine"
    assert "of the skill" in server.text("InvokeSkill", {"skill_name": "deploy"})
    write(folder, "a.py", saying("edited") + PROMPT)
    assert eventually(lambda: server.text("say") == "edited")
    assert asked(server) == "of the plugin" and server.log().count("prompt 'deploy' of") == 1
    file.unlink()
    assert eventually(lambda: asked(server) == "of the skill")


def test_a_plugin_has_its_prompts_from_the_start_whatever_skills_there_are(start: Start, tmp_path: Path) -> None:
    skill(tmp_path / "work" / ".toolgate" / "skills", "deploy")
    own = '@resource("skill://deploy/SKILL.md")\ndef manifest() -> str:\n    """A manifest."""\n    return "own"\n'
    write(tmp_path / "plugins", "a.py", saying("fine") + PROMPT + own)
    server = start("-p", str(tmp_path / "plugins"))
    assert asked(server) == "of the plugin" and server.text("say") == "fine"
    assert server.request("resources/read", {"uri": "skill://deploy/SKILL.md"})["contents"][0]["text"] == "own"
    assert str(tmp_path / "plugins" / "a.py") in server.log() and "SKILL.md is left out" in server.log()


# -- imports that hang


HANGING = "import pathlib, time\nwhile not pathlib.Path({go!r}).exists():\n    time.sleep(0.01)\n"


def test_imports_that_hang_refuse_only_themselves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(loader, "TURN", 0.02)
    monkeypatch.setattr(loader, "PATIENCE", 0.05)
    monkeypatch.setattr(reload, "RETRY", 0.05, raising=False)
    go = tmp_path / "go"

    async def body() -> None:
        inside, changed = PluginLoader(), asyncio.Event()
        folder = tmp_path / "plugins"
        held = PluginReloader([folder], inside.load, on_change=changed.set)

        def names() -> list[str]:
            return [part.key for part in held.registry(Registry()).parts]

        for number in range(12):
            write(folder, f"hangs{number}.py", HANGING.format(go=str(go)))
        await held.reload(PATIENCE)
        write(folder, "sound.py", saying("sound", "sound"))
        await held.reload(PATIENCE)
        assert names() == ["sound"]
        write(folder, "hangs0.py", saying("healed", "healed"))
        await held.reload(PATIENCE)
        assert names() == ["healed", "sound"]
        for again in "ab":
            write(folder, "hangs1.py", HANGING.format(go=str(go)) + f"# {again}\n")
            await held.reload(PATIENCE)
        monkeypatch.setattr(loader, "PATIENCE", PATIENCE)
        write(folder, "hangs1.py", saying("late", "late"))
        await held.reload(PATIENCE)
        assert names() == ["healed", "sound"] and "hangs1.py" in caplog.text
        changed.clear()
        go.touch()
        async with asyncio.timeout(PATIENCE):
            while names() != ["healed", "late", "sound"]:
                await changed.wait()
                changed.clear()
        held.close()
        inside.close()

    try:
        asyncio.run(body())
    finally:
        go.touch()
    assert "only `__isolate__ = True` in the file" in caplog.text and "restart" in caplog.text
    assert caplog.text.count("hangs1.py: 2 earlier versions of it are still being loaded") == 1


# -- what a file asks for


def test_what_a_file_asks_for_is_found_wherever_it_stands(tmp_path: Path) -> None:
    file = tmp_path / "a.py"
    for body, wanted in {
        "__isolate__ = True": True,
        "".join(f"name_{number} = 1\n" for number in range(300)) + "__isolate__ = True  # far\n": True,
        "import os; __isolate__ = True; x = 1\n": True,
        "x = 1\r__isolate__ = True\r": True,
        "\ufeff__isolate__: bool = \\\n  (True)\n": True,
        "\x0c__isolate__ = True\n": True,
        "def f(:\n__isolate__ = True\n'''": True,
        '"""\n__isolate__ = True\n"""\n': False,
        "x = (1,\n__isolate__ == True)\n": False,
        "def f():\n    __isolate__ = True\n": False,
        "__isolate__ = False\nif False:\n    __isolate__ = True\n": False,
        "# __isolate__ = True\n": False,
    }.items():
        file.write_text(body, newline="")
        assert wants_isolation(file) is wanted, body


def test_a_file_that_is_looked_at_is_not_compiled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compiled: list[object] = []
    monkeypatch.setattr(discovery, "compile", lambda *given, **_: compiled.append(given), raising=False)
    file = write(tmp_path, "a.py", "__isolate__ = 1\n")
    assert not wants_isolation(file) and not compiled


def test_a_plugin_too_large_for_the_server_is_told_what_helps(tmp_path: Path) -> None:
    file = write(tmp_path, "a.py", saying("fine") + "# " + "x" * 2**20)

    async def body() -> None:
        inside = PluginLoader()
        with pytest.raises(PluginLoadError) as caught:
            await inside.load(file)
        assert "more than 1048576 bytes of source" in str(caught.value.__cause__ or caught.value)
        assert "`__isolate__ = True`" in str(caught.value.__cause__ or caught.value)
        inside.close()

    asyncio.run(body())
    assert not wants_isolation(file)


def test_a_plugin_too_large_for_the_server_runs_in_a_process_of_its_own(start: Start, tmp_path: Path) -> None:
    require("mounts")
    write(tmp_path / "plugins", "a.py", "__isolate__ = True\n" + saying("large") + "# " + "x" * 2**20)
    assert start("-p", str(tmp_path / "plugins")).text("say") == "large"


# -- folders


def test_folders_nested_deeply_keep_nothing_from_being_served(start: Start, tmp_path: Path) -> None:
    folder = tmp_path / "plugins"
    write(folder, "a.py", saying("fine"))
    write(folder, "c/__init__.py", saying("pack", "pack"))
    try:
        deep(folder / "b", 1_200)
        deep(folder / "c" / "d", 1_200)
        server = start("-p", str(folder))
        assert eventually(lambda: tools(server)[len(TOOLS) :] == ["pack", "say"]), server.log()  # a late one comes
    finally:
        subprocess.run(["rm", "-rf", str(folder)], check=True)  # shutil, and so pytest, would go too deep


def test_a_first_look_that_fails_keeps_nothing_built_in_from_being_served(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def failing(*_: object) -> None:
        raise RecursionError("too deep")

    async def body() -> None:
        monkeypatch.setattr(discovery, "find_plugins", failing)
        app = App(load.load({"state": str(tmp_path / "state"), "plugins": [str(tmp_path)]}))
        await app.start()
        await asyncio.sleep(0)  # what it started has begun
        assert "Bash" in app.host.server().registry.tools
        await app.close()

    asyncio.run(asyncio.wait_for(body(), PATIENCE))
    assert "can't be looked at" in caplog.text and "too deep" in caplog.text


# -- what is left behind


ANNOTATED = """
import dataclasses, sys, typing, weakref

@dataclasses.dataclass
class Row:
    count: int = {version}

sys.__dict__.setdefault("rows", []).append(weakref.ref(Row))

@tool(read_only=True)
async def say(row: typing.Optional[Row] = None, other: Row | None = None) -> str:
    \"\"\"Say which.\"\"\"
    return "{version}"

@tool(read_only=True)
async def census() -> list[int]:
    \"\"\"Count the classes that are alive.\"\"\"
    return [sum(alive() is not None for alive in sys.rows), len(sys.rows)]
"""


def test_annotations_keep_no_generation_alive(start: Start, tmp_path: Path) -> None:
    folder = tmp_path / "plugins"
    write(folder, "a.py", ANNOTATED.format(version=0))
    server = start("-p", str(folder))
    for version in range(1, 31):
        write(folder, "a.py", ANNOTATED.format(version=version))
        assert eventually(lambda version=version: server.text("say") == str(version)), server.log()

    def counted() -> list[int]:
        return [int(word) for word in server.text("census").strip("[]").split(",")]

    assert eventually(lambda: counted() == [1, 31]), counted()
