"""Rows that several parts bring: none takes the place of another's, and the server does not start."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from toolgate.server.app.app import App
from toolgate.server.app.http_app import HttpApp
from toolgate.server.base.merged_rows import merge_rows
from toolgate.server.config import load


def test_rows_come_in_order_and_each_name_once() -> None:
    assert list(merge_rows("rows", {"b": 1}.items(), [("a", 2)]).items()) == [("b", 1), ("a", 2)]
    with pytest.raises(ValueError, match="there are two rows a"):
        merge_rows("rows", [("a", 1)], [("b", 1)], [("a", 1)])


@pytest.mark.parametrize(
    ("added", "said"),
    [
        ({"documents": {"/mcp": None}}, "there are two endpoints /mcp"),
        ({"page_routes": [lambda _pages, _identify: [("/events", None)]]}, "there are two pages /events"),
    ],
)
def test_a_feature_takes_no_path_of_another(tmp_path: Path, added: dict[str, Any], said: str) -> None:
    config = load.load({"http": "true", "state": str(tmp_path), "sandbox": "none", "auth": "none"})

    async def body() -> None:
        app = App(config)
        host = app.host
        end, overview = host.end_principal, app.create_dashboard()
        site = HttpApp(config, host.server(), host.dispatcher(), None, end_background=end, overview=overview, **added)
        with pytest.raises(ValueError, match=said):
            site.create_listener("http://127.0.0.1:8080")
        await app.close()

    asyncio.run(body())
