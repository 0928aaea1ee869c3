"""The files for Traefik: every name in them is defined, and their routes match nginx's.

Traefik itself runs in test_proxies_smuggling.py."""

import re
from typing import Any

import pytest
import yaml

from tests.clients.raw_client import ROOT
from toolgate.server.auth.protected_resource import ProtectedResource

FOLDER = ROOT / "deploy" / "traefik"
PREFIX = (ROOT / "deploy" / "nginx" / "toolgate-prefix.conf").read_text()


def read(name: str) -> Any:
    return yaml.safe_load((FOLDER / name).read_text())


@pytest.mark.parametrize("name", ["toolgate.yaml", "toolgate-prefix.yaml", "toolgate-replicas.yaml"])
def test_each_name_in_a_file_is_defined_in_it(name: str) -> None:
    http = read(name)["http"]
    for router in http["routers"].values():
        assert router["service"] in http["services"]
        assert set(router.get("middlewares", ())) <= set(http.get("middlewares", {}))
    for service in http["services"].values():
        assert service["loadBalancer"]["serversTransport"] in http["serversTransports"]


def test_several_servers_are_asked_in_turn_and_otherwise_as_one() -> None:
    one, several = read("toolgate.yaml")["http"], read("toolgate-replicas.yaml")["http"]
    balancer = several["services"]["toolgate"]["loadBalancer"]
    assert len(balancer.pop("servers")) == 3 and balancer.pop("healthCheck")["path"] == "/health"
    assert one["services"]["toolgate"]["loadBalancer"].pop("servers") and "sticky" not in balancer
    assert several["routers"]["toolgate"]["middlewares"].pop() == "toolgate-retry"
    assert several["middlewares"].pop("toolgate-retry")["retry"]["attempts"] == 3
    for http in (one, several):
        assert http["serversTransports"]["toolgate"]["forwardingTimeouts"].pop("dialTimeout")
    assert several == one


def test_the_labels_say_what_the_file_says() -> None:
    labels = read("labels.yaml")["services"]["toolgate"]["labels"]
    http = read("toolgate.yaml")["http"]
    router, balancer = http["routers"]["toolgate"], http["services"]["toolgate"]["loadBalancer"]
    assert labels["traefik.http.routers.toolgate.rule"] == router["rule"]
    assert [labels["traefik.http.routers.toolgate.entrypoints"]] == router["entryPoints"]
    assert labels["traefik.http.routers.toolgate.tls.certresolver"] == router["tls"]["certResolver"]
    flush = labels["traefik.http.services.toolgate.loadbalancer.responseforwarding.flushinterval"]
    assert flush == balancer["responseForwarding"]["flushInterval"]
    assert [labels["traefik.http.routers.toolgate.middlewares"]] == router["middlewares"]
    named = "traefik.http.middlewares.toolgate-headers.headers"
    removed = {"Upgrade": labels[f"{named}.customrequestheaders.Upgrade"]}
    headers = {"stsSeconds": int(labels[f"{named}.stsseconds"]), "customRequestHeaders": removed}
    assert http["middlewares"]["toolgate-headers"]["headers"] == headers
    port = labels["traefik.http.services.toolgate.loadbalancer.server.port"]
    assert balancer["servers"] == [{"url": f"http://toolgate:{port}"}]


def test_what_clients_look_for_at_the_root_of_the_host_is_led_here_and_nothing_else() -> None:
    resource = ProtectedResource("https://www.example.com/tools", "https://www.example.com/tools", list)
    told = [resource.metadata_url(path).removeprefix("https://www.example.com") for path in resource.paths]
    told += [f"/.well-known/{name}/tools" for name in ("oauth-authorization-server", "openid-configuration")]
    (traefik,) = re.findall(
        r"PathRegexp\(`(.*?)`\)", read("toolgate-prefix.yaml")["http"]["routers"]["toolgate-known"]["rule"]
    )
    (nginx,) = re.findall(r"location ~ (\S+/tools\S+) \{", PREFIX)
    assert traefik == nginx
    for path in told:
        assert re.search(traefik, path), path
    for other in ("/.well-known/oauth-protected-resource/toolsmith", "/.well-known/security.txt", "/tools/x"):
        assert not re.search(traefik, other), other
