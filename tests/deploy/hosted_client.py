"""Sign in with the official Python client to a server that `python -m tests.deploy.hosted_client URL CERTIFICATE CODE`
names, by its first account, and call tools in one session.

It prints a line for each step, and waits for a line before it goes on after the server's restart."""

import asyncio
import http.client
import sys
from pathlib import Path

from tests.clients.raw_client import PATIENCE
from tests.deploy.proxied_server import Connection, Front, Window
from tests.interop.official_clients import THIRTEEN, Negotiation
from tests.interop.sign_in_server import SignInServer
from tests.interop.test_oauth_python_sdk import StoredTokens, connected, text
from tests.server.auth.http_browser import Person
from tests.server.auth.sign_in_server import PASSWORD

SESSION = Negotiation("http", "legacy")  # the newest revision has no sessions


class HostedServer(Front):
    """A server on another machine, whose log a person has read."""

    def __init__(self, url: str, certificate: Path, code: str) -> None:
        super().__init__(None, url, certificate)
        self._code = code

    def log(self) -> str:
        return f"pairing code {self._code}"

    def connect(self, timeout: float = PATIENCE, source: str = "") -> http.client.HTTPConnection:
        return Connection(self, timeout, "")


async def main(url: str, certificate: str, code: str) -> None:
    server = HostedServer(url, Path(certificate), code)
    person = Person(server, "ada", PASSWORD, Window(server))
    tokens = StoredTokens()
    async with connected(SignInServer(server, person, ""), tokens, SESSION) as client:
        assert [tool.name for tool in (await client.list_tools()).tools] == THIRTEEN
        answer = text(await client.call_tool("Bash", {"command": "mkdir here && cd here && touch file && id -un"}))
        print("signed in:", answer.strip(), flush=True)
        assert await asyncio.to_thread(sys.stdin.readline) == "restarted\n"
        answer = text(await client.call_tool("Bash", {"command": "basename $PWD; ls"}))
        print("went on:", *answer.split(), flush=True)
    assert tokens.visits == 1


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
