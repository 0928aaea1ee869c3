"""The official Python client signs in to a real server that can't fetch the client's metadata document."""

import asyncio
import json
import sys
import urllib.parse
from pathlib import Path

from tests.clients.raw_client import eventually
from tests.clients.raw_http_client import Site, site
from tests.interop.official_clients import Negotiation
from tests.interop.sign_in_server import SignInServer, metadata, published
from tests.interop.test_oauth_python_sdk import StoredTokens, connected
from tests.server.auth.http_browser import Person

OFFLINE = (sys.executable, str(Path(__file__).with_name("offline_documents.py")))
LOST = "no metadata document of a client can be fetched from localhost"
WAY = Negotiation("http", "2026-07-28")


def takes_documents(at: Site) -> bool:
    _, _, told = at.ask("GET", "/.well-known/oauth-authorization-server")
    return bool(told["client_id_metadata_document_supported"])


def test_a_client_signs_in_by_a_copy_then_registers_until_its_document_is_reached_again(tmp_path: Path) -> None:
    authority = tmp_path / "authority.pem"
    with published(authority, {}) as (document, _):
        pass  # it is no longer published
    environment = {"SSL_CERT_FILE": str(authority), "WELL_KNOWN": json.dumps(metadata(document))}
    options = ("--auth", "oauth", "--allow-private", "localhost")
    with site(tmp_path / "at", *options, command=OFFLINE, env=environment) as at:
        gate = SignInServer(at, Person(at), document)

        async def client_id() -> str:
            """Return the id of a new client after sign-in."""
            kept = StoredTokens()
            async with connected(gate, kept, WAY, "document") as client:
                assert "Bash" in {tool.name for tool in (await client.list_tools()).tools}
            assert kept.client is not None
            return kept.client.client_id or ""

        assert takes_documents(at)
        assert asyncio.run(client_id()) == document
        assert eventually(lambda: not takes_documents(at))
        assert asyncio.run(client_id()) != document
        assert at.log().count(LOST) == 1 and "WARNING" in at.log().partition(LOST)[0].splitlines()[-1]
        with published(authority, {}, urllib.parse.urlsplit(document).port or 0):
            assert eventually(lambda: takes_documents(at))
            assert asyncio.run(client_id()) == document
