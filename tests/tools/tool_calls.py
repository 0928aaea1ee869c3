"""Call one tool as a client would: through its schema, with a context that has only the test's services."""

import asyncio
from collections.abc import Sequence
from typing import Any

import msgspec

from toolgate.tools.api.content import Output
from toolgate.tools.api.context.context import Context
from toolgate.tools.api.context.notices import Notices
from toolgate.tools.api.context.services import CallerState, Services, Settings
from toolgate.tools.api.outbound.fetch import Web
from toolgate.tools.api.schema.schema import compile_check
from toolgate.tools.api.tool import Tool
from toolgate.tools.reading.pages.local_page_reader import LocalPageReader
from toolgate.tools.reading.pages.page_reader import PageReader
from toolgate.tools.reading.search.lazy_search import LazySearch
from toolgate.tools.reading.search.search import Search
from toolgate.tools.workspace.workspace import Workspace

BOUND = 20.0  # seconds for any call


def page_reader(allow_private: Sequence[str] = ()) -> LocalPageReader:
    """Return the reader of ReadDocs, without a browser."""
    return LocalPageReader(Web(allow_private))


def lend(
    *,
    workspace: Any = None,
    reader: PageReader | None = None,
    search: Search | None = None,
    settings: Settings | None = None,
    principal: str = "me",
    caller_state: CallerState | None = None,
    notices: Notices | None = None,
) -> Services:
    nothing: Any = None
    web: Any = reader and reader.get_fetcher(principal)
    built_in = {
        Workspace: workspace,
        Notices: Notices() if notices is None else notices,
        PageReader: reader,
        LazySearch: search and LazySearch(lambda: search),
    }
    return Services(
        principal=principal,
        caller_state=caller_state or CallerState(),
        workspace=workspace,
        todos=nothing,
        plan=nothing,
        callbacks=nothing,
        web=web,
        settings=settings or Settings(),
        built_in=built_in,
    )


async def call(tool: Tool, arguments: dict[str, Any], *, bound: float = BOUND, **lent: Any) -> Output:
    """Return the tool's answer, which takes `bound` seconds at most; structured content, checked against its schema,
    is plain data."""
    nothing: Any = None
    services = lend(**lent)
    output = await asyncio.wait_for(tool.run(arguments, Context(services, nothing)), bound)
    structured = msgspec.to_builtins(output.structured)
    if structured is not None:
        assert tool.output is not None
        assert compile_check(tool.output)(structured) is None
    return Output(output.content, structured, output.is_error)


def text(output: Output) -> str:
    """Return all text blocks of an answer."""
    return "\n".join(block.text for block in output.content if hasattr(block, "text"))
