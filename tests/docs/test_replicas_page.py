"""The commands of docs/replicas.md, with a real PostgreSQL and Redis in place of the machine's."""

import contextlib
from dataclasses import replace
from pathlib import Path

from tests.docs.pages import page
from tests.docs.reader import Reader
from tests.servers.postgres import Postgres
from tests.servers.redis_server import redis_server

PAGE = "docs/replicas.md"


def test_two_servers_are_tried_as_the_page_says(tmp_path: Path, postgres: Postgres) -> None:
    with contextlib.ExitStack() as running:
        redis = running.enter_context(redis_server())
        instead = {
            "postgresql:///toolgate?host=/run/postgresql": postgres.create_database(),
            "redis://127.0.0.1:6379": redis.url,
        }
        reader = Reader(tmp_path, running)
        said: list[str] = []
        for block in page(PAGE).blocks:
            text = block.text
            for old, new in instead.items():
                text = text.replace(old, new)
            reader.take(replace(block, text=text))
            said += [done.stdout for _, done in reader.said]
        assert any("is running for" in text for text in said)
