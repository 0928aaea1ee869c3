"""Rows about skills: one of many is used."""

from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from tests.bench.growth.measure import Row, Trial
from toolgate.tools.builtin.skills.skills import Skills, instructions


@contextmanager
def beside_skills(folder: Path, size: int) -> Generator[Trial]:
    """Yield a trial that gets the instructions of one of `size` skills, whose folders are watched."""
    for number in range(size):
        (folder / f"s{number}").mkdir()
        (folder / f"s{number}" / "SKILL.md").write_text(f"---\nname: s{number}\ndescription: work\n---\nDo it.\n")
    skills = Skills([folder])
    skills.is_watched = True
    yield Trial(lambda: instructions(skills, "s7", ""))


ROWS = (Row("InvokeSkill beside n skills", 40, beside_skills),)
