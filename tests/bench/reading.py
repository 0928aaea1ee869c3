"""Compare a warm ReadDocs of a static page with Playwright alone, in turns: the same Chromium, the same page, and the
same half second of quiet (`networkidle`)."""

import asyncio
import os
import statistics
import time
from collections.abc import Callable

from playwright.async_api import Browser as Playing
from playwright.async_api import async_playwright

from tests.tools.fake_web_site import site
from tests.tools.tool_calls import lend
from toolgate.tools.api.context.context import Context
from toolgate.tools.api.outbound.fetch import Web
from toolgate.tools.builtin.docs import read_docs
from toolgate.tools.reading.browser.find_chromium import find_chromium
from toolgate.tools.reading.pages.local_page_reader import LocalPageReader

PAGE = (
    b"<!doctype html><title>Page</title><h1>Page</h1>" + b"<p>Some words of a static page, and more of them.</p>" * 200
)
TARGET = 1.5  # times the duration of Playwright alone


def measure(rounds: int, calls: int, tell: Callable[[str], None]) -> tuple[float, float]:
    """Return the medians in seconds: ReadDocs' and Playwright's."""
    return asyncio.run(_measured(rounds * calls, tell))


def report(measured: tuple[float, float]) -> str:
    ours, alone = measured
    verdict = "met" if ours <= TARGET * alone else "MISSED"
    lines = [
        f"ReadDocs, warm, static page   {ours * 1000:6.0f} ms",
        f"Playwright alone              {alone * 1000:6.0f} ms",
    ]
    return "\n".join([*lines, f"ratio {ours / alone:.2f}; target at most {TARGET}: {verdict}"])


async def _measured(count: int, tell: Callable[[str], None]) -> tuple[float, float]:
    chromium = find_chromium(None, os.environ.get("PATH"))
    assert chromium is not None, "make chromium"
    nothing = None
    async with site({"/": PAGE}) as place, async_playwright() as playwright:
        reader = LocalPageReader(Web(["127.0.0.1"]), chromium)
        alone = await playwright.chromium.launch(executable_path=chromium)
        lent = lend(reader=reader)
        times: tuple[list[float], list[float]] = ([], [])
        try:
            for number in range(count + 1):
                tell(f"reading {number} of {count}")
                begun = time.perf_counter()
                output = await read_docs.run({"url": place.url()}, Context(lent, nothing))  # type: ignore[arg-type]
                assert not output.is_error, output
                between = time.perf_counter()
                await _played(alone, place.url())
                times[0].append(between - begun)
                times[1].append(time.perf_counter() - between)
        finally:
            await alone.close()
            await reader.close()
    return statistics.median(times[0][1:]), statistics.median(times[1][1:])  # the first starts the browser


async def _played(browser: Playing, url: str) -> None:
    context = await browser.new_context()
    page = await context.new_page()
    await page.goto(url, wait_until="networkidle")
    assert await page.content()
    await context.close()
