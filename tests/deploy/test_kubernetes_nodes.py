"""The manifests with gateway and nodes apart: the gateway's pod has no rights, and names nodes that are there.

No cluster is here. The patches are merged as kustomize merges them, and checked against the schemas of Kubernetes."""

import re
from typing import Any

import kubernetes_validate
import pytest
import yaml

from tests.deploy.test_container import CAPABILITIES, IMAGE
from tests.deploy.test_deployments import DEPLOY, merged, read
from toolgate.server.cli.parsing.command import flags_of
from toolgate.server.cli.parsing.commands import COMMANDS

OVERLAYS = ("kubernetes-nodes", "agent-sandbox")
FOLDERS = ("kubernetes-gateway", "kubernetes-nodes", "kubernetes-replicas", "agent-sandbox", "agent-sandbox/person")
VERSION = "1.33"


def build_gateway(overlay: str) -> Any:
    """Return the Deployment of an overlay."""
    base = read("kubernetes/deployment.yaml")
    return merged(merged(base, read("kubernetes-gateway/deployment.yaml")), read(f"{overlay}/deployment.yaml"))


def build_node(overlay: str) -> Any:
    """Return the pod template of a node."""
    if overlay == "kubernetes-nodes":
        return read("kubernetes-nodes/statefulset.yaml")["spec"]["template"]
    return read("agent-sandbox/person/sandbox.yaml")["spec"]["podTemplate"]


def list_nodes(overlay: str) -> list[str]:
    """Return the names under which the cluster knows the nodes."""
    if overlay == "kubernetes-nodes":
        spec = read("kubernetes-nodes/statefulset.yaml")["spec"]
        service = read("kubernetes-nodes/service.yaml")
        assert service["metadata"]["name"] == spec["serviceName"] and service["spec"]["clusterIP"] == "None"
        return [f"toolgate-node-{number}.{spec['serviceName']}" for number in range(spec["replicas"])]
    sandbox = read("agent-sandbox/person/sandbox.yaml")
    assert sandbox["spec"]["service"] is True
    people = [name for name in read("agent-sandbox/kustomization.yaml")["resources"] if name.startswith("people/")]
    return [
        sandbox["metadata"]["name"] + read(f"agent-sandbox/{name}/kustomization.yaml")["nameSuffix"] for name in people
    ]


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_a_gateways_pod_meets_the_restricted_standard_and_is_given_each_node(overlay: str) -> None:
    whole = build_gateway(overlay)
    kubernetes_validate.validate(whole, VERSION, strict=True)
    pod = whole["spec"]["template"]["spec"]
    [container] = pod["containers"]
    assert not {"hostUsers", "hostNetwork", "hostPID"} & pod.keys()
    assert (
        pod["securityContext"]["seccompProfile"]
        == pod["securityContext"]["appArmorProfile"]
        == {"type": "RuntimeDefault"}
    )
    assert pod["securityContext"]["runAsNonRoot"] and pod["securityContext"]["runAsUser"] == IMAGE.uid
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    given = dict(word.split("=", 1)[::-1] for word in container["args"] if "=" in word)
    port = build_node(overlay)["spec"]["containers"][0]["ports"][0]["containerPort"]
    nodes = {f"{name}:{port}" for name in list_nodes(overlay)}
    assert {address for address, flag in given.items() if flag == "--node"} == nodes
    [file] = [value for value, flag in given.items() if flag == "--node-certificate"]
    assert [mount["name"] for mount in container["volumeMounts"] if file.startswith(f"{mount['mountPath']}/")] == [
        "certificate"
    ]


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_a_nodes_pod_is_reached_by_gateways_alone_and_keeps_its_certificate(overlay: str) -> None:
    node = build_node(overlay)
    [container] = node["spec"]["containers"]
    assert container["args"][0] == "node"
    assert {word.partition("=")[0] for word in container["args"][1:]} <= set(flags_of(COMMANDS["node"]))
    assert (
        container["securityContext"]["readOnlyRootFilesystem"] and node["spec"]["automountServiceAccountToken"] is False
    )
    for probe in ("startupProbe", "livenessProbe"):
        assert f"--listen={container[probe]['exec']['command'][-1]}" in container["args"]
    labels = node["metadata"]["labels"]
    assert read("kubernetes/service.yaml")["spec"]["selector"].items() - labels.items()  # no person's request gets here
    policies = {each["metadata"]["name"]: each["spec"] for each in read_all("kubernetes-gateway/networkpolicy.yaml")}
    assert policies["toolgate-node"]["podSelector"]["matchLabels"] == labels
    [ingress] = policies["toolgate-node"]["ingress"]
    gateway = build_gateway(overlay)["spec"]["template"]["metadata"]["labels"]
    assert ingress["from"] == [{"podSelector": {"matchLabels": gateway}}]
    assert ingress["ports"] == [{"port": port["containerPort"]} for port in container["ports"]]
    egress = read("kubernetes/networkpolicy.yaml")["spec"]["egress"]
    assert policies["toolgate-node"]["egress"] == egress
    [to_nodes] = policies["toolgate-gateway"]["egress"]
    assert to_nodes == {"to": [{"podSelector": {"matchLabels": labels}}], "ports": ingress["ports"]}


def read_all(path: str) -> list[Any]:
    return list(yaml.safe_load_all((DEPLOY / path).read_text()))


def test_a_node_of_the_statefulset_has_the_rights_that_the_one_server_has() -> None:
    one = read("kubernetes/deployment.yaml")["spec"]["template"]["spec"]
    node = build_node("kubernetes-nodes")["spec"]
    for name in ("hostUsers", "securityContext", "terminationGracePeriodSeconds"):
        assert node[name] == one[name], name
    assert node["containers"][0]["securityContext"] == one["containers"][0]["securityContext"]
    assert node["containers"][0]["resources"] == one["containers"][0]["resources"]
    [claim] = read("kubernetes-nodes/statefulset.yaml")["spec"]["volumeClaimTemplates"]
    assert claim["spec"] == read("kubernetes/volume.yaml")["spec"]


def test_a_sandbox_is_for_one_person_and_its_parts_are_those_of_kubernetes() -> None:
    sandbox = read("agent-sandbox/person/sandbox.yaml")
    assert sandbox["apiVersion"] == "agents.x-k8s.io/v1beta1" and sandbox["kind"] == "Sandbox"
    assert sandbox["spec"].keys() == {"service", "podTemplate", "volumeClaimTemplates"}
    pod = build_node("agent-sandbox")
    named = {"apiVersion": "v1", "metadata": {"name": "toolgate-person", **pod["metadata"]}}
    kubernetes_validate.validate({**named, "kind": "Pod", "spec": pod["spec"]}, VERSION, strict=True)
    [claim] = sandbox["spec"]["volumeClaimTemplates"]
    kubernetes_validate.validate({**claim, "apiVersion": "v1", "kind": "PersistentVolumeClaim"}, VERSION, strict=True)
    [container] = pod["spec"]["containers"]
    assert {"--max-people=1", "--sandbox=uid"} <= set(container["args"]) and pod["spec"]["runtimeClassName"]
    assert container["securityContext"]["capabilities"] == {"drop": ["ALL"], "add": sorted(CAPABILITIES)}
    assert (
        "fsGroup" not in pod["spec"]["securityContext"]
    )  # it would let a group read the key, which root's node refuses
    [certificate] = [volume for volume in pod["spec"]["volumes"] if volume["name"] == "certificate"]
    assert certificate["secret"]["defaultMode"] == 0o400


@pytest.mark.parametrize("overlay", FOLDERS)
def test_kustomize_takes_each_file_of_a_folder(overlay: str) -> None:
    told = read(f"{overlay}/kustomization.yaml")
    named = [*told["resources"], *told.get("components", ()), *(each["path"] for each in told.get("patches", ()))]
    for name in named:
        path = DEPLOY / overlay / name
        assert path.is_file() or (path / "kustomization.yaml").is_file(), name
    there = {path.name for path in (DEPLOY / overlay).glob("*.yaml")} - {"kustomization.yaml"}
    assert there == {name for name in named if re.search(r"^[\w-]+\.yaml$", name)}
