"""Replicas are upgraded one after the other from the release before, and back, under official clients.

The wheel of that release is not in the repository: the environment variable WHEEL_BEFORE names the file. It
runs with the dependencies of this release.
"""

import asyncio
import os
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest

from tests.interop.surviving_clients import check_results, start_clients
from tests.servers.postgres import Postgres
from tests.servers.replicas import Replicas, replicas_behind_nginx

WHEEL = "WHEEL_BEFORE"


@pytest.mark.soak
@pytest.mark.skipif(WHEEL not in os.environ, reason=f"{WHEEL} names no wheel of the release before")
def test_an_upgrade_from_the_release_before_and_back_costs_no_call(tmp_path: Path, postgres: Postgres) -> None:
    before = tmp_path / "before"
    zipfile.ZipFile(os.environ[WHEEL]).extractall(before)
    options = ("--auth", "oauth", "--limit", "calls=100000", "--drain", "10")
    old: dict[str, Any] = {
        "command": (sys.executable, "-P", "-m", "toolgate.server"),
        "env": {"PYTHONPATH": str(before)},
    }
    where = [sys.executable, "-P", "-c", "import toolgate.server; print(toolgate.server.__file__)"]
    found = subprocess.run(where, env=old["env"], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert Path(found.stdout.strip()).is_relative_to(before)
    with replicas_behind_nginx(tmp_path, postgres, *options, count=3, **old) as (replicas, _):
        asyncio.run(call_through_upgrades(replicas, postgres, old))


async def call_through_upgrades(replicas: Replicas, postgres: Postgres, old: dict[str, Any]) -> None:
    def replace() -> None:
        for replicas.how in ({}, old):
            for place, site in enumerate(replicas.sites):
                assert site.stop() == 0, site.log()
                replicas.restart(place)

    ending = asyncio.Event()
    async with asyncio.TaskGroup() as group:
        clients = start_clients(group, replicas, ending)
        await asyncio.to_thread(replace)
        ending.set()
    reports = {name: task.result() for name, task in clients.items()}
    await check_results(reports, replicas, postgres)
    for name, report in reports.items():
        assert not report.errors and report.sessions == 1, (name, report.errors)
        assert len(report.acknowledged) > 6, name  # a busy machine answers few between the six ends
