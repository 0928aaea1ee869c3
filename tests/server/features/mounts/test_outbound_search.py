"""The tests' servers end before a client's token leaves for what is mounted: each way out is searched."""

import base64
import contextlib
import http.client
from collections.abc import Callable, Iterator
from pathlib import Path
from threading import Event

import pytest

from tests.clients.raw_client import PATIENCE, eventually
from tests.clients.raw_http_client import site
from tests.server.auth.minted_tokens import Signed, asked
from tests.server.features.mounts.grants.far_grants import CLIENT
from tests.server.features.mounts.kept_secrets.test_secrets import set_secret
from tests.server.features.mounts.mounted import command_mount, far_site, url_mount, write_config
from tests.server.features.mounts.sign_in.far_sign_in import far_sign_in
from tests.server.features.nodes.nodes import running_node
from tests.servers import forked_command
from tests.servers.forked_command import LEAK
from tests.servers.isolated_plugins import plugin_folder
from tests.servers.outbound_search import TokenSearch

pytestmark = pytest.mark.alone
ECHO = """
    @tool
    async def echo(text: str) -> str:
        "Repeat."
        return text
"""
Options = tuple[str, ...]


@contextlib.contextmanager
def url(folder: Path) -> Iterator[Options]:
    with far_site(folder, "legacy") as far:
        yield write_config(folder, url_mount(far.url))


@contextlib.contextmanager
def command(folder: Path) -> Iterator[Options]:
    yield write_config(folder, command_mount("legacy"))


@contextlib.contextmanager
def node(folder: Path) -> Iterator[Options]:
    with running_node(folder / "node", "--sandbox", "none") as held:
        yield (*write_config(folder, command_mount("legacy")), "--node", f"unix:{held.socket}")


@contextlib.contextmanager
def plugin(folder: Path) -> Iterator[Options]:
    yield ("-p", str(plugin_folder(folder, ECHO)), "--isolate-plugins")


@contextlib.contextmanager
def environment(folder: Path) -> Iterator[Options]:
    table = command_mount("legacy", "far", 'env = { KEY = "${secret:KEY}" }')
    yield (*write_config(folder, table), "--sandbox", "bwrap")


@contextlib.contextmanager
def token_endpoint(folder: Path) -> Iterator[Options]:
    keys = ('auth = "client_credentials"', f'client_id = "{CLIENT}"', 'client_secret = "${secret:KEY}"')
    with far_sign_in() as far:
        yield write_config(folder, url_mount(f"{far.origin}/mcp", "far", *keys, f'token_url = "{far.origin}/token"'))


@contextlib.contextmanager
def leaking_site(folder: Path, *options: str) -> Iterator[Signed]:
    """Yield a server with sign-in, and see it end at a leak."""
    shares = {"--node", "--sandbox"}.isdisjoint(options)
    with site(folder / "server", "--auth", "oauth", *options, workspace=shares) as listening:
        yield Signed(listening)
        assert listening.process.wait(PATIENCE) == LEAK, listening.log()
        assert "an access token of a client was on its way out" in listening.log()
    forked_command.leaks.remove(listening.process.pid)


def request(signed: Signed, token: str, method: str, **params: object) -> str:
    """Return the answer, or "" of a server that has ended."""
    with contextlib.suppress(OSError, http.client.HTTPException):
        return str(asked(signed, token, method, params)[1])
    return ""


@pytest.mark.parametrize("way", [url, command, node, plugin])
def test_a_token_in_a_call_ends_the_server(
    way: Callable[[Path], contextlib.AbstractContextManager[Options]], tmp_path: Path
) -> None:
    with way(tmp_path) as options, leaking_site(tmp_path, *options) as signed:
        token = signed.token("ada")
        name = "echo" if way is plugin else "far__echo"
        assert eventually(lambda: name in request(signed, token, "tools/list"))
        request(signed, token, "tools/call", name=name, arguments={"text": f"Is {token} mine?"})


@pytest.mark.programs("bwrap")
@pytest.mark.parametrize("way", [environment, token_endpoint])
def test_a_token_as_a_secret_ends_the_server(
    way: Callable[[Path], contextlib.AbstractContextManager[Options]], tmp_path: Path
) -> None:
    with way(tmp_path) as options, leaking_site(tmp_path, *options) as signed:
        token = signed.token("ada")
        request(signed, token, "tools/list")
        set_secret(signed.site.state, "KEY", token)
        assert eventually(lambda: not request(signed, token, "tools/list"))


def test_a_token_that_no_client_sent_passes(tmp_path: Path) -> None:
    with plugin(tmp_path) as options, site(tmp_path / "server", "--auth", "oauth", *options) as listening:
        signed = Signed(listening)
        other = signed.token("bob")
        assert other in request(signed, signed.token("ada"), "tools/call", name="echo", arguments={"text": other})


def test_a_token_is_found_across_two_writes_and_in_basic_credentials() -> None:
    token = f"eyJhbGciOiJFUzI1NiJ9.eyJ{'a' * 60}.{'b' * 20}"
    credentials = base64.b64encode(f"ours:{token}".encode()).decode()
    for text in (f'{{"text": "{token}"}}', f"Authorization: Basic {credentials}\r\n"):
        for cut in range(len(text) + 1):
            found: list[int] = []
            search, way = TokenSearch(lambda found=found, cut=cut: found.append(cut)), Event()
            search.note(token)
            for part in (text[:cut], text[cut:]):
                search.search_stream(way, part.encode())
            assert found, text[:cut]
