"""Who is an administrator, however they sign in."""

import asyncio
from pathlib import Path

import pytest

from toolgate.server.auth.login.accounts import Person
from toolgate.server.features.mounts.pages.administrators import Administrators
from toolgate.server.state.sqlite.store import SqliteStore
from toolgate.transports.web.page_context import Visitor, principal_of


@pytest.mark.parametrize(
    ("word", "login", "issuer", "subject"),
    [
        ("github:583231", "github", "https://github.com", "583231"),
        ("oidc:a:b", "oidc=https://id.example", "https://id.example", "a:b"),
        ("header:eve", "header=X-User", "toolgate:header", "eve"),
    ],
)
def test_a_person_of_a_provider_is_named_by_their_subject(
    word: str, login: str, issuer: str, subject: str, tmp_path: Path
) -> None:
    def name(*who: str) -> str:
        return principal_of(Visitor(Person(*who)))

    async def run() -> None:
        store = SqliteStore(tmp_path)
        administrators = Administrators([word, "account:nobody", "account:\0"], [login, "password"], store)
        assert await administrators.includes(name(issuer, subject, "Eve"))
        for other in (name(issuer, f"{subject}x", "Eve"), name("https://other.example", subject, "Eve"), "local", ""):
            assert not await administrators.includes(other)
        store.close()

    asyncio.run(run())
