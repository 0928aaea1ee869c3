"""Run the official conformance suite against a URL, and read the findings of its scenarios."""

import json
import os
import re
import subprocess
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.interop.node import node, package

TIME = 240.0  # seconds for a whole run, which takes ten to twenty without faults
FOLDER = re.compile(r"server-(?P<scenario>.+)-\d{4}-\d\d-\d\dT[\d-]+Z")  # the folder of a scenario's checks
GOOD = ("SUCCESS", "INFO")


@dataclass(frozen=True)
class Check:
    """A finding of a scenario: `status` is SUCCESS, FAILURE, WARNING, SKIPPED or INFO."""

    id: str
    status: str
    error: str


@dataclass(frozen=True)
class Run:
    """The findings of one run of the suite, by scenario, and its end."""

    code: int
    scenarios: Mapping[str, Sequence[Check]]
    said: str

    @property
    def passed(self) -> dict[str, int]:
        """Return the number of passed checks per scenario."""
        return {
            name: Counter(check.status for check in checks)["SUCCESS"]
            for name, checks in sorted(self.scenarios.items())
        }

    def faults(self) -> Iterator[str]:
        """Yield a line for each check that neither passed nor only informs."""
        for name, checks in sorted(self.scenarios.items()):
            for check in checks:
                if check.status not in GOOD:
                    yield f"{name}: {check.id}: {check.status} {check.error}"


def run(version: str, url: str, folder: Path, *options: str) -> Run:
    """Run the suite's `version` ("0.1" or "0.2") against `url`; `folder` is an empty one for what it writes."""
    program = package(f"conformance-{version}") / "dist" / "index.js"
    ended = subprocess.run(
        [node(), str(program), "server", "--url", url, "-o", str(folder), *options],
        env={"PATH": os.environ["PATH"], "HOME": str(folder)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=TIME,
    )
    return Run(ended.returncode, dict(_found(folder)), ended.stdout.decode(errors="replace"))


def _found(folder: Path) -> Iterator[tuple[str, list[Check]]]:
    for file in folder.glob("*/checks.json"):
        named = FOLDER.fullmatch(file.parent.name)
        assert named, f"{file.parent.name} is no folder of a scenario"
        checks = [
            Check(check["id"], check["status"], check.get("errorMessage") or check.get("description", ""))
            for check in json.loads(file.read_text())
        ]
        yield named["scenario"], checks
