"""The WebSearch tool: what a model asks and is told. Knows nothing of single engines or ranking."""

from typing import Annotated

import msgspec

from toolgate.tools.content import Output, Text
from toolgate.tools.context import Context
from toolgate.tools.errors import ToolError
from toolgate.tools.plain import clean
from toolgate.tools.search.asking import Status, ask_all
from toolgate.tools.search.engines import chosen
from toolgate.tools.search.fusion import Result, fused, usable
from toolgate.tools.tool import tool

MAX_QUERY = 400  # characters; engines take no more


class Row(msgspec.Struct, frozen=True):
    """How one engine did. `count` is the number of its results that could be used, `ms` how long it took."""

    name: str
    status: Status
    count: int
    ms: int


class Findings(msgspec.Struct, frozen=True):
    results: list[Result]
    engines: list[Row]


@tool(
    name="WebSearch",
    title="Search the web",
    read_only=True,
    idempotent=True,
    open_world=True,
    output=Findings,
    scope="tools:web",
    as_task=True,
)
async def web_search(query: Annotated[str, "a few keywords"], ctx: Context) -> Output:
    """Search the web and sites for programmers and scientists. Returns up to 20 results, best first: title,
    URL, snippet and the engines that found it; then how each engine did. Takes a few seconds. Read a result
    with ReadDocs.
    """
    words = " ".join(clean(query).split())
    if not words:
        raise ToolError("the query is empty; give a few keywords")
    if len(words) > MAX_QUERY:
        raise ToolError(f"the query is {len(words)} characters long; give at most {MAX_QUERY}")
    settings = ctx.settings
    deadline = min(settings.search_deadline, settings.hold)
    asked = await ask_all(ctx.web, chosen(settings.engines), words, deadline)
    results = fused((one.name, one.found) for one in asked)
    rows = [Row(one.name, one.status, usable(one.found), one.ms) for one in asked]
    failed = not any(one.status in ("ok", "empty") for one in asked)
    return Output([Text(_text(results, rows, failed))], Findings(results, rows), is_error=failed)


def _text(results: list[Result], rows: list[Row], failed: bool) -> str:
    lines = [_listed(number, result) for number, result in enumerate(results, start=1)]
    if failed:
        lines.append("the search failed: no engine answered; try again later, or read a known URL with ReadDocs")
    elif not results:
        lines.append("no results; try other or fewer words")
    table = ", ".join(f"{row.name} {row.status} {row.count} ({row.ms} ms)" for row in rows)
    return "\n\n".join([*lines, f"engines: {table}"])


def _listed(number: int, result: Result) -> str:
    engines = ", ".join(f"{hit.name} #{hit.rank}" for hit in result.engines)
    lines = [f"{number}. {result.title}", f"   {result.url}", f"   {result.snippet}", f"   [{engines}]"]
    return "\n".join(line for line in lines if line.strip())
