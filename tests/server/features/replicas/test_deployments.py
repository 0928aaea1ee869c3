"""Two deployments on one Redis, and a rolling upgrade from the release whose keys in Redis named no deployment."""

import contextlib
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.clients.raw_client import STATELESS, eventually
from tests.clients.raw_http_client import Site, spoken
from tests.clients.raw_task_client import KNOWS, created, ended, get, text
from tests.clients.round_robin import RoundRobin
from tests.conftest import PROBE
from tests.server.auth.minted_tokens import HELLO, request
from tests.server.features.nodes.nodes import running_node
from tests.servers.postgres import Postgres
from tests.servers.redis_server import redis_server
from tests.servers.replicas import Replicas, running_replicas
from tests.servers.reserved_port import kept_ports

EARLIER = (  # the command of this release, with the keys of the one before
    "import sys; from toolgate.server.base.bus import settings; "
    "from toolgate.server.features.replicas.redis import replica; "
    "settings.name_prefix = lambda deployment: settings.PREFIX; replica.EarlierReplicas = lambda *parts: None; "
    "from toolgate.server.__main__ import main; sys.exit(main())"
)
ON_EARLIER: dict[str, Any] = {"command": (sys.executable, "-c", EARLIER)}


@contextlib.contextmanager
def two_deployments(folder: Path, postgres: Postgres) -> Iterator[tuple[Replicas, Replicas]]:
    """Run two servers on one Redis, each with its own database, node and secret."""
    with contextlib.ExitStack() as stack:
        redis = stack.enter_context(redis_server())
        deployments = list[Replicas]()
        for name in ("first", "second"):
            (folder / name).mkdir()
            node = stack.enter_context(running_node(folder / name / "node", "--sandbox", "none"))
            database, port = postgres.create_database(), kept_ports(1)
            url = f"http://127.0.0.1:{port[0]}"
            made = Replicas(folder / name, redis, node, database, *PROBE, ports=port, public_url=url)
            deployments.append(made)
            stack.callback(made.close)
        first, second = deployments
        yield first, second


def test_a_session_of_one_deployment_is_unknown_to_another_on_the_same_redis(
    tmp_path: Path, postgres: Postgres
) -> None:
    with two_deployments(tmp_path, postgres) as (first, second):
        client, foreign = RoundRobin(first.sites), second.sites[0]
        client.ready()
        for method, message in (("POST", request("ping")), ("DELETE", None)):
            assert foreign.ask(method, "/mcp", message, mcp_session_id=client.id)[0].status == 404
        assert client.post("ping")[0].status == 200


def initialize(site: Site, id: str) -> str:
    """Initialize under the id of another server's session, and return the id of the new one."""
    response, _, _ = site.ask("POST", "/mcp", request("initialize", HELLO), mcp_session_id=id)
    opened = response.getheader("mcp-session-id")
    assert response.status == 200 and opened not in (None, id)
    return str(opened)


def name_of(site: Site) -> str:
    """Return the name that a server with -v has among the replicas."""
    name = re.compile(r"this is replica (\w+)")
    assert eventually(lambda: name.search(site.log()) is not None)
    return name.findall(site.log())[0]


@pytest.mark.soak  # bus/test_deployments.py has each step of it
def test_an_upgrade_from_replicas_without_a_deployment_loses_sessions_and_no_task(
    tmp_path: Path, postgres: Postgres
) -> None:
    how = {"revision": STATELESS, "capabilities": KNOWS}
    with running_replicas(tmp_path, postgres, "-v", count=3, **ON_EARLIER) as replicas:
        first, second, _ = replicas.sites
        client = RoundRobin([first, second])
        client.ready()
        client.call("TaskManager", {"action": "create", "query": "repair the lamp"}, at=0)
        with spoken(first, "http", **how) as earlier:
            task = created(earlier, "harmful_job", file=str(tmp_path / "go"))
        replicas.how = {}
        new = replicas.restart(2)
        ping = request("ping")
        assert new.ask("POST", "/mcp", ping, mcp_session_id=client.id)[0].status == 404
        opened = initialize(new, client.id)
        assert client.post("ping", at=0)[0].status == client.post("ping", at=1)[0].status == 200
        name = name_of(second)
        assert eventually(lambda: re.search(rf"watching replica .*{name}", new.log()) is not None)
        assert second.stop() == 0
        assert eventually(lambda: re.search(rf"found dead: replica .*{name}", new.log()) is not None)
        replicas.restart(1)
        with spoken(new, "http", **how) as asking:
            assert get(asking, task)["status"] == "working"
            (tmp_path / "go").touch()
            assert text(ended(asking, task)) == "done"
        assert first.stop() == 0
        replicas.restart(0)
        for site in replicas.sites:
            assert site.ask("POST", "/mcp", ping, mcp_session_id=opened)[0].status == 200
        upgraded = RoundRobin(replicas.sites)
        upgraded.ready()
        assert "repair the lamp" in upgraded.call("TaskManager", {"action": "list", "query": ""})
