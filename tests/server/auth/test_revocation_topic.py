"""Denied tokens at two replicas: denied at one, refused at both at once."""

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.clients.raw_client import PATIENCE
from tests.server.features.replicas.bus.conftest import shared_redis as shared_redis
from tests.server.features.replicas.bus.pairs import run_pair as run_pair
from toolgate.server.auth.revocation_watch import DENIED, RevocationTopic
from toolgate.server.auth.tokens.access_tokens import OwnTokens
from toolgate.server.auth.tokens.jose import InvalidTokenError
from toolgate.server.auth.tokens.signing_keys import SigningKeys
from toolgate.server.base.bus.bus import Bus
from toolgate.server.state.keys.file import KeyFile
from toolgate.server.state.keys.sealed_state import Sealer
from toolgate.server.state.sqlite.store import SqliteStore

Run = Callable[..., None]


def test_a_token_that_one_replica_denies_is_refused_at_the_other_at_once(run_pair: Run, tmp_path: Path) -> None:
    async def check(one: Bus, two: Bus) -> None:
        store = SqliteStore(tmp_path)
        keys = SigningKeys(store, Sealer(KeyFile(tmp_path / "signing"), None))

        denied: list[str] = []

        async def list_denied() -> list[str]:
            return denied

        here, there = (OwnTokens("https://x.test", ["https://x.test/mcp"], keys, list_denied) for _ in range(2))
        RevocationTopic(one.topics, here)
        changes = RevocationTopic(two.topics, there)
        await two.topics.subscribe(DENIED, lambda _: None, lambda: None).confirm()
        token = await here.mint("p-ada", "a client", ["tools:read"])
        await there.verify(token.token)
        denied.append(token.jti)  # as the caller stores it
        here.deny([token.jti])
        async with asyncio.timeout(PATIENCE):
            await changes.changed.wait()
        for tokens in (here, there):
            with pytest.raises(InvalidTokenError):
                await tokens.verify(token.token)
        changes.changed.clear()
        here.deny([])
        assert not changes.changed.is_set()
        await store.aclose()

    run_pair(check)
