"""Watching the skill folders, for real."""

import asyncio
import shutil
import subprocess
import sys
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from tests.clients.raw_client import PATIENCE
from toolgate.server.app.served_parts import watch_skills
from toolgate.server.base.watch import watch_folders
from toolgate.tools.builtin.skills.skills import Skills

WATCH = """
import asyncio, sys
from pathlib import Path
from toolgate.server.base.watch import watch_folders

async def main():
    looked = asyncio.Event()

    async def look():
        looked.set()

    watch = asyncio.ensure_future(watch_folders("skill", lambda: [Path.cwd()], look))
    await asyncio.wait_for(looked.wait(), 10)
    watch.cancel()
    await asyncio.wait([watch])

asyncio.run(main())
print([name for name in ("watchfiles._rust_notify", "watchfiles", "multiprocessing", "anyio") if name in sys.modules])
"""


def write(folder: Path, name: str, about: str) -> None:
    (folder / name).mkdir(parents=True, exist_ok=True)
    (folder / name / "SKILL.md").write_text(f"---\nname: {name}\ndescription: {about}\n---\n")


class Watched:
    """A watch in progress. `tells(names)` waits until it has told of a catalogue with exactly these names."""

    def __init__(self, skills: Skills) -> None:
        self.skills = skills
        self.told: asyncio.Queue[dict[str, str]] = asyncio.Queue()

    def changed(self) -> None:
        self.told.put_nowait({skill.name: skill.description for skill in self.skills.catalogue().values()})

    async def tells(self, expected: dict[str, str]) -> None:
        async with asyncio.timeout(PATIENCE):
            while await self.told.get() != expected:
                pass


def watched(skills: Skills, body: Callable[[Watched], Awaitable[None]]) -> None:
    async def run() -> None:
        skills.describe(1000)
        it = Watched(skills)
        task = asyncio.create_task(watch_skills(skills, it.changed))
        try:
            await body(it)
        finally:
            task.cancel()
            async with asyncio.timeout(PATIENCE):
                await asyncio.wait([task])
            assert task.cancelled()
        assert not [thread for thread in threading.enumerate() if thread.name.startswith("watch")]

    asyncio.run(run())


def test_the_first_skill_of_an_absent_folder_is_seen_and_so_is_what_follows(tmp_path: Path) -> None:
    folder = tmp_path / ".toolgate" / "skills"

    async def body(it: Watched) -> None:
        write(folder, "one", "first")
        await it.tells({"one": "first"})
        write(folder, "two", "second")
        await it.tells({"one": "first", "two": "second"})
        write(folder, "one", "changed")
        await it.tells({"one": "changed", "two": "second"})
        shutil.rmtree(folder / "two")
        await it.tells({"one": "changed"})
        shutil.rmtree(tmp_path / ".toolgate")
        await it.tells({})
        write(folder, "three", "again")
        await it.tells({"three": "again"})

    watched(Skills([folder]), body)


def test_a_skill_is_found_as_it_is_while_the_folders_are_watched(tmp_path: Path) -> None:
    mine, theirs = tmp_path / "mine", tmp_path / "theirs"
    skills = Skills([mine, theirs])

    async def body(it: Watched) -> None:
        (mine / "other").mkdir(parents=True)
        write(theirs, "one", "first")
        await it.tells({"one": "first"})
        assert skills.is_watched

        def find(name: str) -> tuple[str, Path] | None:
            found = skills.find(name)
            return None if found is None else (found.description, found.folder)

        write(theirs, "one", "second")
        assert find("one") == ("second", theirs / "one")
        write(theirs, "two", "new")
        assert find("two") == ("new", theirs / "two")
        write(mine, "two", "before theirs")
        assert find("two") == ("before theirs", mine / "two")
        shutil.rmtree(mine / "two")
        assert find("two") == ("new", theirs / "two")
        shutil.rmtree(theirs / "two")
        assert find("two") is None
        (mine / "other" / "SKILL.md").write_text("---\nname: one\ndescription: by the watch\n---\n")
        await it.tells({"one": "by the watch"})
        assert find("one") == ("by the watch", mine / "other")

    watched(skills, body)
    assert not skills.is_watched


def test_a_change_between_describing_and_watching_is_told(tmp_path: Path) -> None:
    skills = Skills([tmp_path])
    skills.describe(1000)
    write(tmp_path, "one", "meanwhile")

    async def run() -> None:
        told = asyncio.Event()
        task = asyncio.create_task(watch_skills(skills, told.set))
        async with asyncio.timeout(PATIENCE):
            await told.wait()
        task.cancel()
        await asyncio.wait([task])

    asyncio.run(run())


def test_a_folder_moved_away_and_back_is_seen(tmp_path: Path) -> None:
    write(tmp_path / "home" / "skills", "one", "first")

    async def body(it: Watched) -> None:
        (tmp_path / "home").rename(tmp_path / "away")
        await it.tells({})
        (tmp_path / "away").rename(tmp_path / "home")
        await it.tells({"one": "first"})

    watched(Skills([tmp_path / "home" / "skills"]), body)


def test_what_does_not_change_the_catalogue_is_not_told(tmp_path: Path) -> None:
    write(tmp_path / "skills", "one", "first")

    async def body(it: Watched) -> None:
        (tmp_path / "other").mkdir()
        (tmp_path / "skills" / "one" / "notes.txt").write_text("x")
        with (tmp_path / "skills" / "one" / "SKILL.md").open("a") as file:
            file.write("more instructions")
        write(tmp_path / "skills", "two", "second")  # what is told is the first thing that matters
        async with asyncio.timeout(PATIENCE):
            assert "two" in await it.told.get()
        assert it.told.empty()

    watched(Skills([tmp_path / "skills"]), body)


def test_an_idle_watch_does_not_look_at_the_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "skills", "one", "first")
    skills = Skills([tmp_path / "skills"])
    looks = 0
    armed = threading.Event()
    catalogue = skills.catalogue

    def counted() -> object:
        nonlocal looks
        looks += 1
        armed.set()
        return catalogue()

    async def body(it: Watched) -> None:
        monkeypatch.setattr(skills, "catalogue", counted)
        await asyncio.to_thread(armed.wait, 8)
        before = looks
        await asyncio.sleep(0.6)  # several steps of the watch; nothing to wait for, as nothing happens
        assert looks <= before + 1

    watched(skills, body)


def test_a_system_without_watches_is_looked_at_again_and_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    from watchfiles import _rust_notify

    def none_left(*_: object) -> None:
        raise OSError(24, "Too many open files (os error 24)")

    async def body() -> None:
        changed = asyncio.Event()
        folder = tmp_path / "skills"

        async def look() -> None:
            if folder.exists():
                changed.set()
            else:
                folder.mkdir()

        watch = asyncio.ensure_future(watch_folders("skill", lambda: [tmp_path], look, poll=0.01))
        await asyncio.wait_for(changed.wait(), PATIENCE)
        watch.cancel()
        await asyncio.wait([watch])

    monkeypatch.setattr(_rust_notify, "RustNotify", none_left)
    asyncio.run(body())
    assert caplog.text.count("skill folders can't be watched: changes are seen within 0.01 s") == 1


def test_a_watch_loads_only_the_part_of_the_library_that_it_needs(tmp_path: Path) -> None:
    command = [sys.executable, "-c", WATCH]
    told = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=PATIENCE, check=True)
    assert told.stdout == "['watchfiles._rust_notify']\n"
