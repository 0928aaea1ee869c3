"""deploy/compose.scale.yaml: gateways that differ in nothing, each part on its networks alone, and secrets in files.

No engine is here: `make check` checks the syntax, and Redis runs with the words that Valkey gets."""

import ipaddress
import os
import re
import stat
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.clients.raw_client import ROOT
from tests.deploy.test_deployments import DEPLOY, IMAGE, VARIABLES, read
from tests.servers.redis_server import redis_server
from toolgate.server.config import load
from toolgate.server.features.postgres.database_check import PER_SERVER
from toolgate.server.state.keys import file as key_file
from toolgate.server.state.keys.token_file import read_token

GATEWAYS = ("gateway-1", "gateway-2", "gateway-3")
SETTINGS = {name: value for name, value in os.environ.items() if name == "PATH"}


@pytest.fixture(scope="module")
def compose() -> Any:
    return read("compose.scale.yaml")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder with the secrets that the script makes."""
    if os.geteuid() != 0:
        pytest.skip("only root can give files to a group")
    folder = tmp_path_factory.mktemp("secrets") / "secrets"
    words = [str(DEPLOY / "make-secrets"), str(folder)]
    done = subprocess.run(words, capture_output=True, text=True, env=SETTINGS, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    before = (folder / "secret").read_bytes()
    again = subprocess.run(words, capture_output=True, text=True, env=SETTINGS, timeout=60)
    assert again.returncode == 1 and "exists: nothing was made" in again.stderr
    assert (folder / "secret").read_bytes() == before
    return folder


def test_the_gateways_are_one_three_times_with_a_folder_each(compose: Any) -> None:
    gateways = [dict(compose["services"][name]) for name in GATEWAYS]
    assert [each.pop("volumes") for each in gateways] == [
        [f"{name}:{IMAGE.volumes[0]}", "socket:/run/toolgate-node:ro"] for name in GATEWAYS
    ]
    assert gateways[0] == gateways[1] == gateways[2]
    [gateway] = gateways[:1]
    assert set(gateway["environment"]) <= VARIABLES
    upstreams = compose["services"]["caddy"]["environment"]["TOOLGATE_UPSTREAMS"]
    assert upstreams.split() == [f"{name}:{IMAGE.ports[0]}" for name in GATEWAYS]
    assert gateway["healthcheck"]["test"][1:] == IMAGE.health == ["toolgate", "health"]
    given = gateway["environment"]
    ends_after = int(given["TOOLGATE_DRAIN"]) + int(given["TOOLGATE_GRACE"]) + 3
    assert int(gateway["stop_grace_period"].removesuffix("s")) > ends_after
    keepalive = re.search(r"keepalive (\d+)s", (DEPLOY / "caddy" / "Caddyfile.replicas").read_text())
    assert keepalive is not None and int(keepalive[1]) < int(given["TOOLGATE_DRAIN"])


def test_the_node_and_caddy_are_those_of_the_other_compose_files(compose: Any) -> None:
    apart = read("compose.node.yaml")["services"]
    own = {"networks"}
    node, other = compose["services"]["node"], apart["node"]
    assert {name for name in node | other if node.get(name) != other.get(name)} == own
    caddy, other = compose["services"]["caddy"], apart["caddy"]
    assert {name for name in caddy | other if caddy.get(name) != other.get(name)} == {
        *("depends_on", "environment", "volumes")
    }


def test_each_part_has_few_rights_and_reaches_what_it_needs(compose: Any) -> None:
    services = compose["services"]
    for name, service in services.items():
        assert service["read_only"] and service["cap_drop"] == ["ALL"] and service["mem_limit"], name
        assert service["pids_limit"] and "no-new-privileges:true" in service["security_opt"], name
        assert "privileged" not in service and ("ports" in service) == ("cap_add" in service) == (name == "caddy")
    on = {name: set(service["networks"]) for name, service in services.items()}
    assert on == {
        **{gateway: {"inside", "data"} for gateway in GATEWAYS},
        "node": {"commands"},
        "postgres": {"data"},
        "valkey": {"data"},
        "caddy": {"inside"},
    }
    assert compose["networks"]["data"] == {"internal": True}
    [inside] = compose["networks"]["inside"]["ipam"]["config"]
    subnet, addresses = (
        ipaddress.ip_network(inside[name].split(":-")[1].rstrip("}")) for name in ("subnet", "ip_range")
    )
    caddy = ipaddress.ip_address(services["caddy"]["networks"]["inside"]["ipv4_address"].split(":-")[1].rstrip("}"))
    assert caddy in subnet and caddy not in addresses and addresses.subnet_of(subnet)  # type: ignore[arg-type]
    most = int(services["postgres"]["command"][-1].removeprefix("max_connections="))
    assert most - 3 >= PER_SERVER * (len(GATEWAYS) + 1)  # three are PostgreSQL's own administrator's


def test_secrets_are_files_that_the_script_makes_and_nothing_else_has(
    compose: Any, made: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert {path.name for path in made.iterdir()} == set(compose["secrets"])
    assert {each["file"] for each in compose["secrets"].values()} == {f"secrets/{name}" for name in compose["secrets"]}
    assert "deploy/secrets/" in (ROOT / ".gitignore").read_text().split()
    given = {name: set(service.get("secrets", ())) for name, service in compose["services"].items()}
    assert given["postgres"] == {"postgres-password"} and given["valkey"] == {"valkey.conf"}
    assert given["node"] == given["caddy"] == set()
    for path in made.iterdir():
        found = path.stat()
        assert (found.st_uid, found.st_gid, stat.S_IMODE(found.st_mode)) == (0, IMAGE.uid, 0o640), path
    monkeypatch.setattr(os, "geteuid", lambda: IMAGE.uid)
    assert key_file.is_private((made / "secret").stat())  # though its group may read it
    gateway = compose["services"]["gateway-1"]
    named = {name: value.replace("/run/secrets", str(made)) for name, value in gateway["environment"].items()}
    named["TOOLGATE_PUBLIC_URL"] = "https://tools.example.com"
    config = load.load({}, {name: value for name, value in named.items() if name != "TOOLGATE_TRUSTED_PROXIES"})
    assert str(config.database) == "postgresql://postgres/toolgate" and str(config.redis) == "valkey:6379"
    assert read_token(config.metrics_token) and config.drain == 10
    password = (made / "postgres-password").read_text()
    assert re.fullmatch("[0-9a-f]{64}", password) and f"toolgate:{password}@" in config.database.secret
    assert len((made / "secret").read_bytes()) == 32


def test_valkey_is_told_what_a_server_without_persistence_needs(compose: Any, made: Path) -> None:
    program, file, *words = compose["services"]["valkey"]["command"]
    assert (program, file) == ("valkey-server", "/run/secrets/valkey.conf")
    kept = [word for word in words if not word.startswith(("--bind", "--dir"))]
    with redis_server(*kept, "--requirepass", "x") as server:
        found = ask(server.port, "maxmemory", "maxmemory-policy", "save", "appendonly")
    assert found == {"maxmemory": str(512 * 2**20), "maxmemory-policy": "noeviction", "save": "", "appendonly": "no"}
    assert re.fullmatch(r"requirepass [0-9a-f]{64}\n", (made / "valkey.conf").read_text())


def ask(port: int, *names: str) -> dict[str, str]:
    words = ["redis-cli", "-p", str(port), "-a", "x", "--no-auth-warning", "CONFIG", "GET", *names]
    lines = subprocess.run(words, capture_output=True, text=True, check=True, timeout=60).stdout.splitlines()
    return dict(zip(lines[::2], lines[1::2], strict=True))
