"""deploy/kubernetes-replicas: gateways without a volume, that are replaced and scaled while the others serve.

No cluster is here. The patches are merged as kustomize merges them, and checked against the schemas of Kubernetes."""

import re
from typing import Any

import kubernetes_validate
import pytest

from tests.deploy.test_container import IMAGE
from tests.deploy.test_deployments import DEPLOY, VARIABLES, merged, read
from tests.deploy.test_kubernetes_nodes import VERSION, build_gateway
from toolgate.server.features.postgres.database_check import PER_SERVER

LABELS = {"app.kubernetes.io/name": "toolgate"}
INGRESS_KEEPALIVE = 60  # seconds, of ingress-nginx


@pytest.fixture(scope="module")
def gateway() -> Any:
    return merged(build_gateway("kubernetes-nodes"), read("kubernetes-replicas/deployment.yaml"))


def test_a_gateway_has_all_it_shares_in_one_secret_and_no_volume(gateway: Any) -> None:
    kubernetes_validate.validate(gateway, VERSION, strict=True)
    pod = gateway["spec"]["template"]["spec"]
    [container] = pod["containers"]
    given = {each["name"]: each["value"] for each in container["env"]}
    assert set(given) <= VARIABLES
    files = {name: value.removeprefix("file:") for name, value in given.items() if "/" in value}
    assert set(files) == {f"TOOLGATE_{name}" for name in ("DATABASE", "REDIS", "SECRET", "METRICS_TOKEN")}
    [mount] = [each for each in container["volumeMounts"] if each["name"] == "replicas"]
    assert mount["readOnly"] and all(value.startswith(f"{mount['mountPath']}/") for value in files.values())
    volumes = {each.pop("name"): each for each in pod["volumes"]}
    assert volumes["replicas"]["secret"] == {"secretName": "toolgate-replicas", "defaultMode": 0o440}
    assert set(volumes["state"]) == {"emptyDir"} and "volume.yaml" in str(
        read("kubernetes-replicas/kustomization.yaml")
    )
    deleted = read("kubernetes-replicas/volume.yaml")
    assert deleted["kind"] == "PersistentVolumeClaim" and deleted["$patch"] == "delete"
    assert deleted["metadata"]["name"] == read("kubernetes/volume.yaml")["metadata"]["name"]
    assert pod["securityContext"]["runAsUser"] == IMAGE.uid and "procMount" not in container["securityContext"]


def test_a_pod_has_the_time_to_drain_and_its_successor_comes_first(gateway: Any) -> None:
    spec = gateway["spec"]
    assert "replicas" not in spec
    assert spec["strategy"] == {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}}
    pod = spec["template"]["spec"]
    [container] = pod["containers"]
    assert container["readinessProbe"]["httpGet"]["path"] == "/ready"
    given = {each["name"]: each["value"] for each in container["env"]}
    drain, grace = int(given["TOOLGATE_DRAIN"]), int(given["TOOLGATE_GRACE"])
    leave = container["lifecycle"]["preStop"]["sleep"]["seconds"]
    assert drain > INGRESS_KEEPALIVE and pod["terminationGracePeriodSeconds"] > leave + drain + grace + 3


def test_the_autoscaler_the_budget_and_the_policies_are_about_the_gateways(gateway: Any) -> None:
    scaler = read("kubernetes-replicas/autoscaler.yaml")["spec"]
    assert scaler["scaleTargetRef"] == {name: gateway[name] for name in ("apiVersion", "kind")} | {"name": "toolgate"}
    assert 3 <= scaler["minReplicas"] < scaler["maxReplicas"]
    assert (scaler["maxReplicas"] + 1) * PER_SERVER <= 97  # PostgreSQL's default, without its administrator's
    [container] = gateway["spec"]["template"]["spec"]["containers"]
    assert container["resources"]["requests"]["cpu"] == "500m" and container["resources"]["limits"]["cpu"] == "1"
    budget = read("kubernetes-replicas/disruptionbudget.yaml")["spec"]
    assert budget["selector"]["matchLabels"] == gateway["spec"]["template"]["metadata"]["labels"] == LABELS
    policy = read("kubernetes-replicas/networkpolicy.yaml")["spec"]
    assert policy["podSelector"]["matchLabels"] == LABELS and policy["policyTypes"] == ["Egress"]
    assert [each["ports"] for each in policy["egress"]] == [[{"port": 5432}], [{"port": 6379}]]
    assert all(each["to"] for each in policy["egress"])
    for text in ((DEPLOY / "kubernetes" / f"{name}.yaml").read_text() for name in ("service", "ingress")):
        assert not re.search("affinity|sticky|upstream-hash", text, re.I)
