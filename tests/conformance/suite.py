"""Runs the official conformance suite against a URL, and reads what each of its scenarios found. Knows nothing of the
server, or of what there should be to find."""

import json
import os
import re
import subprocess
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.interop.node import node, package

TIME = 240.0  # seconds for a whole run, which takes ten to twenty where nothing is wrong
FOLDER = re.compile(r"server-(?P<scenario>.+)-\d{4}-\d\d-\d\dT[\d-]+Z")  # what a scenario writes its checks into
GOOD = ("SUCCESS", "INFO")


@dataclass(frozen=True)
class Check:
    """What a scenario found: `status` is SUCCESS, FAILURE, WARNING, SKIPPED or INFO."""

    id: str
    status: str
    error: str


@dataclass(frozen=True)
class Run:
    """All that one run of the suite found, by scenario, and how it ended."""

    code: int
    scenarios: Mapping[str, Sequence[Check]]
    said: str

    @property
    def passed(self) -> dict[str, int]:
        """How many checks of each scenario passed."""
        return {
            name: Counter(check.status for check in checks)["SUCCESS"]
            for name, checks in sorted(self.scenarios.items())
        }

    def faults(self) -> Iterator[str]:
        """A line for each check that neither passed nor merely informs."""
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
