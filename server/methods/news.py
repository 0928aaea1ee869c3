"""Add what happened meanwhile to a tool's result: to its text, and to its structured content where it has some.

Some clients show their model the text alone, others the structured content alone: news in one half would be lost.
"""

from typing import Any

import msgspec

from toolgate.server.protocol.session import Call
from toolgate.tools.api.content import Output, Text
from toolgate.tools.api.notices import Notices
from toolgate.tools.api.schema import NEWS
from toolgate.tools.api.tool import Tool


def add_news(notices: Notices, call: Call, tool: Tool, output: Output, structured: Any) -> tuple[Output, Any]:
    """Return the output and what is structured of it, with the news that this caller may hear.

    Where the structured content has no room for them they wait for the next result. They are told once; they are kept
    when the answer does not go out.
    """
    plain = None if structured is None else msgspec.to_builtins(structured)
    if plain is not None and not _has_room(tool, plain):
        return output, structured
    session = call.session
    news = notices.take() if session.scopes is None else notices.take(lambda scope: session.allows(frozenset((scope,))))
    if not news:
        return output, structured
    if call.flight is not None:
        call.flight.on_unsent = lambda: notices.restore(news)
    texts = [notice.text for notice in news.values()]
    block = Text("\nMeanwhile:\n" + "\n".join(f"- {text}" for text in texts))  # some clients join blocks with nothing
    told = Output([*output.content, block], output.structured, output.is_error)
    return told, None if plain is None else {**plain, NEWS: [*plain.get(NEWS, ()), *texts]}


def _has_room(tool: Tool, plain: Any) -> bool:
    return tool.allows_news and isinstance(plain, dict) and isinstance(plain.get(NEWS, []), list)
