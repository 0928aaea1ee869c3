"""Wait until the config file of a running server gets the first table of a feature."""

import asyncio
import logging
import os
from collections.abc import Sequence
from pathlib import Path

from toolgate.server.base.errors import UsageError
from toolgate.server.base.watch import watch_folders
from toolgate.server.config.feature_rows import FeatureRow
from toolgate.server.config.load import read_tables

DEBOUNCE = 200  # ms that changes of the file are gathered for

log = logging.getLogger(__name__)


async def wait_for_table(file: Path, rows: Sequence[FeatureRow]) -> FeatureRow:
    """Return the first of the rows that the file has a table for. A file that can't be read has none."""
    found: asyncio.Future[FeatureRow] = asyncio.get_running_loop().create_future()

    unreadable = ""  # why, once: a log beside the file changes its folder with each line

    async def look() -> None:
        nonlocal unreadable
        try:
            tables = await asyncio.to_thread(read_tables, file)
        except UsageError as error:
            if str(error) != unreadable:
                log.warning("%s: it is not followed", error)
            unreadable = str(error)
            return
        unreadable = ""
        row = next((row for row in rows if tables.get(row.table)), None)
        if row is not None and not found.done():
            found.set_result(row)

    if file == Path(os.devnull):  # the server of a command: its folder changes all the time
        return await found
    watching = asyncio.create_task(watch_folders("config", lambda: [file.parent], look, DEBOUNCE))
    try:
        return await found
    finally:
        watching.cancel()
        await asyncio.wait([watching])
