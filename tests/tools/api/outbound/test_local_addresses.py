"""A machine does not reach itself by its public addresses: tested in a network namespace that has some."""

import os
import sys
from collections.abc import Iterator

import pytest

from tests.clients.raw_client import COMMAND, Stdio, served
from toolgate.tools.api.outbound.address_policy import is_local

OWN = "11.22.33.44"
SECOND = "11.22.33.45"  # of the same network: connections to it come from the first
OTHER = "11.99.0.1"  # elsewhere
OWN6 = "2606:4700::11"
PORT = 18_777
USER = 39_999  # of no other process
NETWORK = (
    f"ip link set lo up; ip addr add {OWN}/24 dev lo; ip addr add {SECOND}/24 dev lo; "
    f"ip -6 addr add {OWN6}/64 dev lo nodad; "
)
SERVICE = f"{sys.executable} -m http.server {PORT} --bind :: --directory /usr/share >/dev/null 2>&1 & "

pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason="only root makes networks"),
    pytest.mark.programs("bwrap", "ip", "unshare"),
]


@pytest.fixture(scope="module")
def inside(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stdio]:
    """Yield a server in the service's namespace."""
    script = f'{NETWORK}{SERVICE}trap "kill $!" EXIT; "$@"'
    folder = tmp_path_factory.mktemp("local")
    place = folder / "place"
    place.mkdir()
    os.chown(place, USER, USER)
    words = ["--sandbox", "bwrap", "--sandbox-network", "public", "--workspace", str(place), "--browser", "none"]
    words += ["--refuse-networks", "11.99.0.0/24"]
    with served(folder, *words, command=("unshare", "--net", "sh", "-c", script, "sh", COMMAND)) as server:
        yield server


@pytest.mark.parametrize("host", [OWN, SECOND, f"[{OWN6}]"])
def test_a_public_address_of_the_machine_is_not_reached(inside: Stdio, host: str) -> None:
    url = f"http://{host}:{PORT}/"
    assert "of this machine" in inside.error("ReadDocs", {"url": url})
    said = inside.text("Bash", {"command": f"curl -sS -m 9 -o /dev/null -w '%{{http_code}}' -g '{url}'"})
    assert said == "403"


def test_a_network_that_the_operator_names_is_not_reached(inside: Stdio) -> None:
    url = f"http://{OTHER}:{PORT}/"
    assert "in a network of --refuse-networks" in inside.error("ReadDocs", {"url": url})
    assert inside.text("Bash", {"command": f"curl -s -m 9 -o /dev/null -w '%{{http_code}}' {url}"}) == "403"


def test_addresses_elsewhere_are_not_of_this_machine() -> None:
    assert [is_local(each) for each in ("127.0.0.1", "::1", "192.0.2.7", "2001:db8::7", "site.example")] == [
        *(True, True, False, False, False)
    ]
