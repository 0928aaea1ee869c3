"""Plugins in a real server: which files are loaded, and what their changes do while clients are connected."""

import asyncio
import os
import shutil
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.clients.raw_client import PATIENCE, STATELESS, Refusal, Server, eventually
from toolgate.server.app.builtin_tools import TOOLS
from toolgate.tools.api.plugins.loader import LoadedPlugin, PluginLoader
from toolgate.tools.api.plugins.reload import PluginReloader
from toolgate.tools.api.registry import Part, Registry

Start = Callable[..., Server]

IMPORTS = "from toolgate.tools import Context, prompt, resource, tool\n"
GOOD = '@tool(read_only=True)\nasync def {name}() -> str:\n    """Say {name}."""\n    return "{name}"\n'
SAYING = '@tool(read_only=True)\nasync def {name}() -> str:\n    """Say it."""\n    return "{text}"\n'
PROMPT = '@prompt()\ndef {name}() -> str:\n    """Ask for {name}."""\n    return "{name}"\n'
RESOURCE = '@resource("test://{name}")\ndef {name}() -> str:\n    """Hold {name}."""\n    return "{name}"\n'
FIELDS = {"tools": "name", "prompts": "name", "resources": "uri"}


def write(folder: Path, name: str, body: str) -> Path:
    """Save a plugin file as careful editors do: a new file renamed over the old one."""
    file = folder / name
    file.parent.mkdir(parents=True, exist_ok=True)
    draft = file.with_name(f".{file.name}.draft")
    draft.write_text(IMPORTS + body)
    draft.replace(file)
    return file


def saying(text: str, name: str = "say") -> str:
    return SAYING.format(name=name, text=text)


def listed(server: Server, kind: str = "tools") -> list[str]:
    return [part[FIELDS[kind]] for part in server.request(f"{kind}/list")[kind]]


def changes(server: Server, kind: str = "tools") -> int:
    """Return how many list changes the client was notified of."""
    return sum(message.get("method") == f"notifications/{kind}/list_changed" for message in server.messages)


def changed(server: Server, count: int, kind: str = "tools") -> None:
    assert eventually(lambda: changes(server, kind) >= count), server.log()
    assert changes(server, kind) == count


def says(server: Server, text: str, tool: str = "say") -> None:
    """Wait until the tool's answer is `text`, for changes of code that change no list."""
    assert eventually(lambda: answer(server, tool) == text), (answer(server, tool), server.log())


def answer(server: Server, tool: str = "say") -> str | None:
    try:
        return server.text(tool)
    except Refusal:  # there is no such tool
        return None


# -- what is taken


def test_plugins_are_found_in_folders_below_and_packages_and_come_sorted_behind_the_thirteen(
    start: Start, tmp_path: Path
) -> None:
    folder = tmp_path / "plugins"
    write(folder, "z.py", GOOD.format(name="zebra"))
    write(folder, "deep/er/a.py", GOOD.format(name="ant"))
    write(folder, "pack/__init__.py", "from .inner import middle\n")
    write(folder, "pack/inner.py", GOOD.format(name="middle"))
    write(folder, "_private.py", GOOD.format(name="private"))
    write(folder, ".hidden/x.py", GOOD.format(name="hidden"))
    (folder / "notes.txt").write_text("not Python")
    assert listed(start("-p", str(folder)))[len(TOOLS) :] == ["ant", "middle", "zebra"]
    assert not list(folder.rglob("__pycache__"))


BROKEN = [
    "def broken(:\n",
    "raise RuntimeError('at import')\n",
    "raise BaseException('at import')\n",
    "import sys; sys.exit(3)\n",
    "import no_such_module\n",
    "@tool\nasync def nodoc() -> str:\n    return ''\n",
    '@tool\nasync def typeless(x) -> str:\n    """No type."""\n    return ""\n',
    '@tool(input={"type": "nonsense"})\nasync def badschema() -> str:\n    """Bad."""\n    return ""\n',
    '@tool(input={"$ref": "http://127.0.0.1/"})\nasync def remote() -> str:\n    """Remote."""\n    return ""\n',
    '@prompt(role="system")\ndef roles() -> str:\n    """A role there is not."""\n    return ""\n',
    GOOD.format(name="twin") + "other = twin.described('again')\n",
]


@pytest.mark.parametrize("body", BROKEN)
def test_a_plugin_that_fails_to_load_is_named_in_the_log_and_the_others_serve(
    start: Start, tmp_path: Path, body: str
) -> None:
    folder = tmp_path / "plugins"
    write(folder, "bad.py", body)
    write(folder, "good.py", GOOD.format(name="good"))
    server = start("-p", str(folder))
    assert listed(server)[len(TOOLS) :] == ["good"]
    assert "bad.py" in server.log()


def test_the_log_shows_the_lines_of_a_plugin_that_fails(start: Start, tmp_path: Path) -> None:
    folder = tmp_path / "plugins"
    write(folder, "bad.py", "def inner():\n    raise RuntimeError('at import')  # this very line\n\n\ninner()\n")
    server = start("-p", str(folder))
    assert f'{folder / "bad.py"}", line 3, in inner' in server.log()
    assert "# this very line" in server.log()


def test_a_plugin_that_collides_is_refused_with_both_places_named(start: Start, tmp_path: Path) -> None:
    folder = tmp_path / "plugins"
    write(folder, "a.py", GOOD.format(name="Bash") + GOOD.format(name="fine"))
    write(folder, "b.py", GOOD.format(name="same"))
    write(folder, "c.py", GOOD.format(name="same"))
    server = start("-p", str(folder))
    assert listed(server)[len(TOOLS) :] == ["same"]
    log = server.log()
    assert "a.py" in log and "shell.py" in log and "b.py" in log and "c.py" in log
    assert "hi" in server.text("Bash", {"command": "echo hi"})


def test_a_plugin_that_prints_at_import_does_not_reach_the_protocol(start: Start, tmp_path: Path) -> None:
    folder = tmp_path / "plugins"
    write(folder, "loud.py", "print('loud')\n" + GOOD.format(name="quiet"))
    server = start("-p", str(folder))
    assert server.text("quiet") == "quiet"
    assert eventually(lambda: "loud" in server.log())


# -- what changes


def test_each_kind_of_list_is_told_of_by_itself(connect: Start, tmp_path: Path) -> None:
    folder = tmp_path / "plugins"
    folder.mkdir()
    server = connect("-p", str(folder))
    bodies = {"tools": GOOD, "prompts": PROMPT, "resources": RESOURCE}
    for count, (kind, body) in enumerate(bodies.items(), 1):
        write(folder, f"{kind}.py", body.format(name=f"new_{kind}"))
        changed(server, 1, kind)
        assert [changes(server, other) for other in bodies] == [1] * count + [0] * (3 - count)
        assert any(f"new_{kind}" in key for key in listed(server, kind))
    assert server.text("new_tools") == "new_tools"
    assert server.request("prompts/get", {"name": "new_prompts"})["messages"][0]["content"]["text"] == "new_prompts"
    assert server.request("resources/read", {"uri": "test://new_resources"})["contents"][0]["text"] == "new_resources"


def test_a_change_is_seen_within_a_second(connect: Start, tmp_path: Path) -> None:
    folder = tmp_path / "plugins"
    write(folder, "a.py", GOOD.format(name="first"))
    server = connect("-p", str(folder))
    took = []
    for count in range(1, 6):
        began = time.monotonic()
        write(folder, "a.py", GOOD.format(name=f"name_{count}"))
        changed(server, count)
        assert f"name_{count}" in listed(server)
        took.append(time.monotonic() - began)
    assert min(took) < 1.0  # the quickest: others use this machine too


def test_a_subscription_of_the_stateless_era_is_told(connect: Start, tmp_path: Path) -> None:
    folder = tmp_path / "plugins"
    folder.mkdir()
    server = connect("-p", str(folder), revision=STATELESS)
    server.begin("subscriptions/listen", {"notifications": {"promptsListChanged": True}})
    server.wait(lambda said: said.get("method") == "notifications/subscriptions/acknowledged")
    write(folder, "a.py", GOOD.format(name="tool_only"))
    write(folder, "b.py", PROMPT.format(name="new"))
    changed(server, 1, "prompts")
    assert changes(server, "tools") == 0


def test_an_edit_before_the_watch_begins_is_not_lost(start: Start, tmp_path: Path) -> None:
    folder = tmp_path / "plugins"
    write(folder, "a.py", saying("old"))
    server = start("-p", str(folder))
    write(folder, "a.py", saying("new"))
    says(server, "new")


def test_a_broken_edit_leaves_the_last_good_version_and_heals(connect: Start, tmp_path: Path) -> None:
    folder = tmp_path / "plugins"
    write(folder, "a.py", saying("old"))
    server = connect("-p", str(folder))
    for count, body in enumerate(BROKEN, 1):
        write(folder, "a.py", body)
        assert eventually(lambda count=count: server.log().count("its last good version is served") == count)
        assert server.text("say") == "old"
    write(folder, "a.py", saying("new"))
    says(server, "new")
    assert changes(server) == 0  # it was the same tool all the time


def test_a_broken_plugin_is_logged_with_its_cause_and_its_own_frames_alone(connect: Start, tmp_path: Path) -> None:
    write(tmp_path / "plugins", "a.py", "import no_such_module\n")
    server = connect("-p", str(tmp_path / "plugins"))
    assert eventually(lambda: "it is left out" in server.log())
    assert "it failed to load: ModuleNotFoundError: No module named 'no_such_module'; it is left out" in server.log()
    assert 'a.py", line ' in server.log() and "importlib" not in server.log()


def test_a_file_that_is_emptied_before_it_is_written_costs_nothing(connect: Start, tmp_path: Path) -> None:
    folder = tmp_path / "plugins"
    file = write(folder, "a.py", saying("old"))
    marker = write(folder, "b.py", GOOD.format(name="marker"))
    server = connect("-p", str(folder))
    body = IMPORTS + saying("new")
    with file.open("w") as stream:
        marker.unlink()
        changed(server, 1)  # it was looked at while it was empty
        assert server.text("say") == "old"
        stream.write(body)
    says(server, "new")
    assert changes(server) == 1
    file.write_text("")
    changed(server, 2)  # and if it stays so, it is what it is
    assert "say" not in listed(server)


def test_a_file_that_is_cut_short_heals_with_the_rest(connect: Start, tmp_path: Path) -> None:
    folder = tmp_path / "plugins"
    file = write(folder, "a.py", saying("old"))
    server = connect("-p", str(folder))
    body = IMPORTS + saying("new")
    with file.open("w") as stream:
        stream.write(body[:-4])
        stream.flush()
        assert eventually(lambda: "SyntaxError" in server.log())
        assert server.text("say") == "old"
        stream.write(body[-4:])
    says(server, "new")
    assert changes(server) == 0


def test_a_file_that_is_deleted_is_gone_and_comes_again(connect: Start, tmp_path: Path) -> None:
    folder = tmp_path / "plugins"
    file = write(folder, "a.py", saying("one"))
    server = connect("-p", str(folder))
    file.unlink()
    changed(server, 1)
    assert answer(server) is None
    write(folder, "a.py", saying("two"))
    changed(server, 2)
    assert server.text("say") == "two"
    shutil.rmtree(folder)
    changed(server, 3)
    assert answer(server) is None
    write(folder, "deep/a.py", saying("three"))
    changed(server, 4)
    assert server.text("say") == "three"


def test_what_tells_nothing_new_is_not_announced(connect: Start, tmp_path: Path) -> None:
    folder = tmp_path / "plugins"
    write(folder, "a.py", saying("old") + PROMPT.format(name="p") + RESOURCE.format(name="r"))
    server = connect("-p", str(folder))
    write(folder, "a.py", saying("old") + PROMPT.format(name="p") + RESOURCE.format(name="r"))
    write(folder, "a.py", saying("new") + PROMPT.format(name="p") + RESOURCE.format(name="r"))
    says(server, "new")
    write(folder, "b.py", GOOD.format(name="another"))
    changed(server, 1)
    assert changes(server, "prompts") == changes(server, "resources") == 0


def test_an_edit_of_the_same_size_and_time_is_seen(connect: Start, tmp_path: Path) -> None:
    folder = tmp_path / "plugins"
    file = write(folder, "a.py", saying("old"))
    os.utime(file, (1_000_000_000, 1_000_000_000))
    server = connect("-p", str(folder))
    for text in ("new", "odd", "end"):
        draft = folder / ".draft"
        draft.write_text(IMPORTS + saying(text))
        os.utime(draft, (1_000_000_000, 1_000_000_000))
        draft.replace(file)
        says(server, text)
    assert not list(folder.rglob("__pycache__"))


def test_a_package_changes_with_its_inner_files(connect: Start, tmp_path: Path) -> None:
    folder = tmp_path / "plugins"
    write(folder, "pack/__init__.py", "from .deep.inner import say\n")
    write(folder, "pack/deep/inner.py", "from .. import _words\n" + saying("{_words.WORD}").replace('"{', 'f"{'))
    write(folder, "pack/_words.py", "WORD = 'old'\n")
    server = connect("-p", str(folder))
    assert server.text("say") == "old"
    write(folder, "pack/_words.py", "WORD = 'new'\n")
    says(server, "new")
    write(folder, "pack/deep/inner.py", saying("own"))
    says(server, "own")
    assert not list(folder.rglob("__pycache__"))


def test_folders_and_links_that_come_later_are_watched(connect: Start, tmp_path: Path) -> None:
    folder = tmp_path / "above" / "plugins"
    folder.mkdir(parents=True)
    server = connect("-p", str(folder))
    write(folder, "a.py", saying("first", "one"))
    changed(server, 1)
    write(folder, "sub/b.py", saying("first", "two"))
    changed(server, 2)
    target = write(tmp_path / "elsewhere", "c.py", saying("first", "three"))
    (folder / "c.py").symlink_to(target)
    changed(server, 3)
    assert [server.text(name) for name in ("one", "two", "three")] == ["first"] * 3
    write(folder, "sub/b.py", saying("second", "two"))
    says(server, "second", "two")
    write(tmp_path / "elsewhere", "c.py", saying("second", "three"))
    says(server, "second", "three")


# -- collisions


def test_a_newcomer_waits_whole_until_its_name_is_free(connect: Start, tmp_path: Path) -> None:
    folder = tmp_path / "plugins"
    first = write(folder, "b.py", saying("first"))
    server = connect("-p", str(folder))
    write(folder, "a.py", saying("second") + GOOD.format(name="other"))
    assert eventually(lambda: "declared twice" in server.log())
    log = server.log()
    assert str(folder / "a.py") in log and str(folder / "b.py") in log
    assert server.text("say") == "first" and answer(server, "other") is None and changes(server) == 0
    first.unlink()
    changed(server, 1)
    assert server.text("say") == "second" and server.text("other") == "other"
    assert server.log().count("declared twice") == 1


def test_a_version_that_collides_leaves_the_last_good_one(connect: Start, tmp_path: Path) -> None:
    folder = tmp_path / "plugins"
    write(folder, "a.py", saying("old"))
    server = connect("-p", str(folder))
    write(folder, "a.py", saying("new") + GOOD.format(name="Bash"))
    assert eventually(lambda: "tool 'Bash' is declared twice" in server.log())
    assert "shell.py" in server.log() and server.text("say") == "old"
    write(folder, "a.py", saying("new"))
    says(server, "new")
    assert changes(server) == 0


def test_names_may_be_exchanged_at_once_and_what_serves_keeps_what_it_has(tmp_path: Path) -> None:
    async def body() -> None:
        modules, served = PluginLoader(), Registry()

        def swap() -> None:
            nonlocal served
            served = plugins.registry(Registry())

        plugins = PluginReloader([tmp_path], modules.load, on_change=swap)

        async def now() -> dict[str, str]:
            await plugins.reload(PATIENCE)
            return {part.key: Path(part.source).name for part in served.parts}

        write(tmp_path, "a.py", GOOD.format(name="x"))
        write(tmp_path, "b.py", GOOD.format(name="y"))
        assert await now() == {"x": "a.py", "y": "b.py"}
        write(tmp_path, "a.py", GOOD.format(name="y"))
        write(tmp_path, "b.py", GOOD.format(name="x"))
        assert await now() == {"y": "a.py", "x": "b.py"}
        write(tmp_path, "a.py", GOOD.format(name="x") + GOOD.format(name="z"))  # takes what b.py has and keeps
        write(tmp_path, "b.py", GOOD.format(name="x") + GOOD.format(name="y"))  # takes what a.py would have let go
        assert await now() == {"y": "a.py", "x": "b.py"}
        write(tmp_path, "b.py", GOOD.format(name="y"))  # now they would exchange
        assert await now() == {"x": "a.py", "z": "a.py", "y": "b.py"}
        plugins.close()
        modules.close()

    asyncio.run(body())


# -- calls under way


LONG = """
import asyncio
from pathlib import Path

@tool(read_only=True)
async def long(ctx: Context) -> str:
    \"\"\"Wait for a file, then import.\"\"\"
    await ctx.progress(0, 1, "begun")
    while not Path({go!r}).exists():
        await asyncio.sleep(0.01)
    from . import late
    return "{version} " + late.VERSION

@tool(read_only=True)
async def say() -> str:
    \"\"\"Say which.\"\"\"
    return "{version}"
"""


def test_a_call_under_way_ends_on_the_old_code_while_a_new_one_runs_the_new(connect: Start, tmp_path: Path) -> None:
    folder, go = tmp_path / "plugins", tmp_path / "go"

    def save(version: str) -> None:
        write(folder, "pack/late.py", f"VERSION = '{version}'\n")
        write(folder, "pack/__init__.py", LONG.format(go=str(go), version=version))

    def begin(count: int) -> int:
        id = server.begin("tools/call", {"name": "long"}, progressToken=f"of {count}")
        server.wait(lambda said: said.get("params", {}).get("progressToken") == f"of {count}")
        return id

    save("one")
    server = connect("-p", str(folder))
    first = begin(1)
    save("two")
    says(server, "two")
    second = begin(2)
    shutil.rmtree(folder / "pack")
    changed(server, 1)
    go.touch()
    texts = [server.result(id)["content"][0]["text"] for id in (first, second)]
    assert texts == ["one one", "two two"]


WATCHED = """
import asyncio

@resource("test://watched")
def watched() -> str:
    \"\"\"What is watched.\"\"\"
    return "{version}"

@watched.watching
async def changes():
    if "{version}" == "new":
        yield
    await asyncio.Event().wait()
"""


def test_a_subscription_goes_over_to_the_new_code(connect: Start, tmp_path: Path) -> None:
    folder = tmp_path / "plugins"
    write(folder, "a.py", WATCHED.format(version="old"))
    server = connect("-p", str(folder))
    server.request("resources/subscribe", {"uri": "test://watched"})
    write(folder, "a.py", WATCHED.format(version="new"))
    told = server.wait(lambda said: said.get("method") == "notifications/resources/updated")
    assert told["params"] == {"uri": "test://watched"}
    assert changes(server, "resources") == 0


def test_calls_that_print_exit_and_raise_cost_themselves_alone(connect: Start, tmp_path: Path) -> None:
    folder = tmp_path / "plugins"
    rogue = """
import os, sys

@tool(read_only=True)
async def say() -> str:
    \"\"\"Misbehave.\"\"\"
    print("printed in a call", flush=True)
    {act}
"""
    write(folder, "a.py", saying("fine"))
    server = connect("-p", str(folder))
    for act in ("sys.exit(3)", "raise BaseException('odd')", "raise KeyboardInterrupt", "raise RuntimeError('x')"):
        write(folder, "a.py", rogue.format(act=act))
        with pytest.raises(Refusal):
            while server.text("say") == "fine":
                pass
        write(folder, "a.py", saying("fine"))
        assert eventually(lambda: _well(server))
    assert "printed in a call" in server.log()


def _well(server: Server) -> bool:
    try:
        return server.text("say") == "fine"
    except Refusal:
        return False


def test_a_plugin_that_hangs_while_it_is_loaded_holds_nothing_up(connect: Start, tmp_path: Path) -> None:
    folder = tmp_path / "plugins"
    write(folder, "a.py", saying("old"))
    server = connect("-p", str(folder))
    began = time.monotonic()
    write(folder, "a.py", "import time; time.sleep(60)\n" + saying("never"))
    write(folder, "b.py", GOOD.format(name="other"))
    changed(server, 1)
    assert server.text("say") == "old" and server.text("other") == "other"
    write(folder, "a.py", saying("new"))
    says(server, "new")
    assert time.monotonic() - began < 9.0  # before it would have been given up


@pytest.mark.soak  # it waits for as long as a plugin gets
def test_a_plugin_that_is_not_loaded_in_time_is_named_in_the_log(start: Start, tmp_path: Path) -> None:
    folder = tmp_path / "plugins"
    write(folder, "slow.py", "import time; time.sleep(60)\n" + GOOD.format(name="slow"))
    write(folder, "sound.py", GOOD.format(name="sound"))
    server = start("-p", str(folder))
    says(server, "sound", "sound")
    assert eventually(lambda: "slow.py: not loaded within 10 s; it is left out" in server.log())
    assert server.text("sound") == "sound"


@pytest.mark.brief("http")
def test_a_plugin_that_blocks_the_server_is_named_in_the_log(connect: Start, tmp_path: Path) -> None:
    folder = tmp_path / "plugins"
    body = """
import time

def inner():
    time.sleep(1.8)  # line 5

@tool(read_only=True)
async def block() -> str:
    \"\"\"Block.\"\"\"
    inner()
    return "done"

@tool(read_only=True)
def thread() -> str:
    \"\"\"Block nobody.\"\"\"
    inner()
    return "done"
"""
    file = write(folder, "a.py", body)
    server = connect("-p", str(folder))
    assert server.text("thread") == "done"
    assert "blocks the server" not in server.log()
    assert server.text("block") == "done"
    assert eventually(lambda: "blocked the server" in server.log())
    assert server.log().count(f"plugin {file}, line 6, blocks the server") == 1


# -- many changes


GENERATION = """
import asyncio, sys, weakref

sys.__dict__.setdefault("generations", []).append(weakref.ref(sys.modules[__name__]))
VERSION = "{version}"

@tool(name="say_{number}", description="version {version}", read_only=True)
async def say() -> str:
    await asyncio.sleep(0.2)
    from . import late
    return VERSION + " " + late.VERSION
"""
CENSUS = """
import sys

@tool(read_only=True)
async def census() -> list[int]:
    \"\"\"Count the modules of plugins, and those of generations that are alive.\"\"\"
    modules = [name for name in sys.modules if name.startswith("toolgate_plugin_pack")]
    return [len(modules), sum(alive() is not None for alive in sys.generations), len(sys.generations)]
"""


@pytest.mark.parametrize(
    "connect", ["http", *(pytest.param(one, marks=pytest.mark.soak) for one in ("stdio", "sse"))], indirect=True
)
def test_two_hundred_reloads_under_load_lose_no_call_and_leave_nothing_behind(connect: Start, tmp_path: Path) -> None:
    folder, packs = tmp_path / "plugins", range(5)

    def save(version: int) -> None:
        for number in packs:
            write(folder, f"pack{number}/late.py", f"VERSION = '{version}'\n")
            write(folder, f"pack{number}/__init__.py", GENERATION.format(version=version, number=number))

    def list_versions() -> set[str]:
        tools = server.request("tools/list")["tools"]
        return {tool["description"] for tool in tools if tool["name"].startswith("say_")}

    save(0)
    write(folder, "census.py", CENSUS)
    server = connect("-p", str(folder))
    under_way: list[int] = []
    for version in range(1, 41):
        begun = [server.begin("tools/call", {"name": f"say_{number}", "arguments": {}}) for number in packs]
        before = changes(server)
        save(version)
        assert eventually(lambda before=before: changes(server) > before), server.log()
        assert eventually(lambda wanted={f"version {version}"}: list_versions() == wanted), server.log()
        for id in under_way:
            words = server.result(id)["content"][0]["text"].split()
            assert len(words) == 2
        under_way = begun
    for id in under_way:
        server.result(id)
    counts: list[int] = []

    def swept() -> bool:
        counts[:] = server.request("tools/call", {"name": "census"})["content"] and _numbers(server)
        return counts[:2] in ([10, 5], [5, 5]) and counts[2] >= 200

    assert eventually(swept), counts


def _numbers(server: Server) -> list[int]:
    return [int(word) for word in server.text("census").strip("[]").split(",")]


# -- isolation


def test_a_file_that_asks_for_isolation_is_not_imported_here(tmp_path: Path) -> None:
    class Nothing:
        parts: Sequence[Part] = ()

        def retire(self) -> None: ...

    async def body() -> None:
        here: list[str] = []
        apart: list[str] = []

        def into(loads: list[str]) -> Callable[[Path], Any]:
            async def load(file: Path) -> LoadedPlugin:
                loads.append(file.name)
                return Nothing()

            return load

        write(tmp_path, "a.py", "__isolate__ = True\n")
        write(tmp_path, "b.py", "__isolate__: bool = True\n")
        write(tmp_path, "c.py", "__isolate__ = False\nif False:\n    __isolate__ = True\n")
        plugins = PluginReloader([tmp_path], into(here), into(apart), on_change=lambda: None)
        await plugins.reload(PATIENCE)
        assert (here, sorted(apart)) == (["c.py"], ["a.py", "b.py"])
        everything = PluginReloader([tmp_path], into([]), into(apart), isolate=True, on_change=lambda: None)
        await everything.reload(PATIENCE)
        assert apart[2:] == ["a.py", "b.py", "c.py"]
        for each in (plugins, everything):
            each.close()

    asyncio.run(body())
