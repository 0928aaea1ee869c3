"""Compose, Kubernetes and systemd files match the server's options, user and folders, and grant few rights. `make
check` checks their syntax."""

import copy
import re
import shlex
from itertools import pairwise
from pathlib import Path
from typing import Any

import kubernetes_validate
import yaml

from tests.clients.raw_client import ROOT
from tests.deploy import image
from tests.deploy.test_container import CAPABILITIES
from tests.docs.pages import page
from toolgate.server.cli.parsing.commands import COMMANDS
from toolgate.server.config.options import OPTIONS

DEPLOY = ROOT / "deploy"
IMAGE = image.read((DEPLOY / "Dockerfile").read_text())
UNTYPED = {"there is no engine of containers here", "it takes a cluster"}  # why no test types a block of the guide
SECRETS = {  # secret → the manifest that says where its file is
    "toolgate-node": DEPLOY / "kubernetes-nodes" / "statefulset.yaml",
    "toolgate-gateway": DEPLOY / "kubernetes-nodes" / "deployment.yaml",
}
VARIABLES = {option.variable for option in OPTIONS}


def read(path: str) -> Any:
    return yaml.safe_load((DEPLOY / path).read_text())


def test_of_compose_caddy_alone_is_reached_and_toolgate_has_no_right_but_to_make_sandboxes() -> None:
    compose = read("compose.yaml")
    toolgate, caddy = compose["services"]["toolgate"], compose["services"]["caddy"]
    assert "ports" not in toolgate and {port.split(":")[0] for port in caddy["ports"]} == {"80", "443"}
    for service in (toolgate, caddy):
        assert (
            service["read_only"] and service["cap_drop"] == ["ALL"] and service["mem_limit"] and service["pids_limit"]
        )
        assert "no-new-privileges:true" in service["security_opt"] and "privileged" not in service
    assert "cap_add" not in toolgate and "user" not in toolgate
    assert toolgate["volumes"] == [f"state:{IMAGE.volumes[0]}"]
    assert [each for each in toolgate["security_opt"] if each.startswith("seccomp")] == ["seccomp=seccomp.json"]
    assert (DEPLOY / "seccomp.json").exists()
    assert set(toolgate["environment"]) <= VARIABLES
    assert toolgate["environment"]["TOOLGATE_TRUSTED_PROXIES"] == caddy["networks"]["inside"]["ipv4_address"]
    assert caddy["environment"]["TOOLGATE_UPSTREAM"] == f"toolgate:{IMAGE.ports[0]}"


def test_of_compose_with_a_node_the_node_alone_may_make_sandboxes_and_replace_its_socket() -> None:
    one, apart = read("compose.yaml"), read("compose.node.yaml")
    gateway, node = apart["services"]["toolgate"], apart["services"]["node"]
    assert apart["services"]["caddy"] == one["services"]["caddy"]
    assert gateway["security_opt"] == ["no-new-privileges:true"]
    assert node["security_opt"] == one["services"]["toolgate"]["security_opt"]
    for service in (gateway, node):
        assert service["read_only"] and service["cap_drop"] == ["ALL"] and service["mem_limit"]
        assert service["pids_limit"] and not {"ports", "cap_add", "user", "privileged"} & service.keys()
        assert set(service.get("environment", {})) <= VARIABLES
    assert not set(gateway["networks"]) & set(node["networks"])
    folder = str(Path(node["command"][2].removeprefix("unix:")).parent)
    assert gateway["volumes"] == ["state:/data", f"socket:{folder}:ro"]
    assert node["volumes"] == ["node:/data", f"socket:{folder}"]
    assert gateway["environment"]["TOOLGATE_NODE"] == node["command"][2] == node["healthcheck"]["test"][-1]
    assert f"-m 700 {folder}" in (DEPLOY / "Dockerfile").read_text()  # an empty volume gets its owner there


def test_what_the_environment_of_compose_may_set_is_all_in_its_example() -> None:
    used, apart, scale = (
        set(re.findall(r"\$\{(TOOLGATE_\w+)", (DEPLOY / f"compose{name}.yaml").read_text()))
        for name in ("", ".node", ".scale")
    )
    assert apart == used and scale ^ used == {"TOOLGATE_ADDRESS", "TOOLGATE_RANGE"}
    shown = dict(re.findall(r"^(\w+)=(.*)$", (DEPLOY / ".env.example").read_text(), re.M))
    assert set(shown) == used | scale
    defaults = dict(re.findall(r"\$\{(TOOLGATE_\w+):-([^}]*)\}", (DEPLOY / "compose.yaml").read_text()))
    assert {name: shown[name] for name in defaults if name != "TOOLGATE_PACKAGES"} == {
        name: value for name, value in defaults.items() if name != "TOOLGATE_PACKAGES"
    }


def test_in_kubernetes_the_pod_is_not_root_and_is_asked_where_it_answers() -> None:
    pod = read("kubernetes/deployment.yaml")["spec"]["template"]["spec"]
    [container] = pod["containers"]
    assert pod["securityContext"]["runAsNonRoot"] and pod["securityContext"]["runAsUser"] == IMAGE.uid
    assert pod["hostUsers"] is False and pod["automountServiceAccountToken"] is False
    held = container["securityContext"]
    assert held["readOnlyRootFilesystem"] and held["capabilities"] == {"drop": ["ALL"]}
    assert held["allowPrivilegeEscalation"] is False
    assert [port["containerPort"] for port in container["ports"]] == IMAGE.ports
    probes = [container[f"{name}Probe"]["httpGet"]["path"] for name in ("startup", "liveness", "readiness")]
    assert probes == ["/health", "/health", "/ready"]
    assert {mount["mountPath"] for mount in container["volumeMounts"]} == {*IMAGE.volumes, "/tmp"}
    assert set(read("kubernetes/configmap.yaml")["data"]) <= VARIABLES
    grace = pod["terminationGracePeriodSeconds"]
    leave = container["lifecycle"]["preStop"]["sleep"]["seconds"]
    assert grace > leave + 10 + 5 + 3  # seconds for the drain, for running calls, and for the end of streams


def test_what_kustomize_takes_is_there_and_the_secret_is_an_example() -> None:
    listed = read("kubernetes/kustomization.yaml")["resources"]
    there = {path.name for path in (DEPLOY / "kubernetes").glob("*.yaml")} - {"kustomization.yaml"}
    assert set(listed) == there - {"secret.example.yaml"}
    names = {yaml.safe_load((DEPLOY / "kubernetes" / name).read_text())["metadata"]["name"] for name in there}
    assert names == {"toolgate"}


def test_the_kubernetes_variant_stands_beside_its_base() -> None:
    """kubectl refuses to build on a folder that holds the one it builds."""
    here = DEPLOY / "kubernetes-baseline"
    [base] = read("kubernetes-baseline/kustomization.yaml")["resources"]
    assert (here / base / "kustomization.yaml").is_file()
    assert not here.resolve().is_relative_to((here / base).resolve())


def test_each_of_the_compose_has_an_address_of_its_own() -> None:
    """A dynamic address could be the one that is trusted as Caddy's."""
    compose = read("compose.yaml")
    given = [service["networks"]["inside"]["ipv4_address"] for service in compose["services"].values()]
    assert len(set(given)) == len(given) == len(compose["services"])


def test_the_kubernetes_variant_fits_the_baseline_pod_standard() -> None:
    whole = merged(read("kubernetes/deployment.yaml"), read("kubernetes-baseline/deployment.yaml"))
    kubernetes_validate.validate(whole, "1.33", strict=True)
    pod = whole["spec"]["template"]["spec"]
    [container] = pod["containers"]
    assert container["image"] == "toolgate" and container["securityContext"]["readOnlyRootFilesystem"]
    added = set(container["securityContext"]["capabilities"]["add"])
    assert added <= {"CHOWN", "DAC_OVERRIDE", "FOWNER", "FSETID", "KILL", "SETGID", "SETPCAP", "SETUID", "SYS_CHROOT"}
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert (pod["securityContext"]["appArmorProfile"], container["securityContext"]["procMount"]) == (
        {"type": "RuntimeDefault"},
        "Default",
    )


def merged(whole: Any, patch: Any) -> Any:
    """Return a strategic merge, as far as these patches need it."""
    if isinstance(whole, dict) and isinstance(patch, dict):
        made = copy.deepcopy(whole)
        for name, value in patch.items():
            if value is None:
                made.pop(name, None)
            else:
                made[name] = merged(whole.get(name, type(value)()), value)
        return made
    if whole and isinstance(whole, list) and patch and isinstance(patch[0], dict):
        key = "mountPath" if "mountPath" in patch[0] else "name"
        changes = {each[key]: each for each in patch}
        there = {each[key] for each in whole}
        return [
            *(merged(each, changes.get(each[key], {})) for each in whole),
            *(each for each in patch if each[key] not in there),
        ]
    return patch


def test_systemd_has_the_server_keep_its_state_where_it_gives_it_a_folder() -> None:
    unit = (DEPLOY / "systemd" / "toolgate.service").read_text()
    told = dict(re.findall(r"^(\w+)=(.*)$", unit, re.M))
    assert "TOOLGATE_STATE=%S/toolgate" in told["Environment"] and told["StateDirectory"] == "toolgate"
    assert told["ExecStart"] == "/opt/toolgate/bin/toolgate -t -s"
    assert set(re.findall(r"^(\w+)=", (DEPLOY / "systemd" / "toolgate.env").read_text(), re.M)) <= VARIABLES
    mask_proc = ("ProtectKernelTunables", "ProtectKernelLogs", "ProtectProc", "ProcSubset", "ProtectHostname")
    assert not {*mask_proc, "MemoryDenyWriteExecute", "ProtectControlGroups", "RestrictSUIDSGID"} & set(told)


def read_settings(text: str) -> dict[str, list[str]]:
    """Return a unit's settings, each with its values in order."""
    settings: dict[str, list[str]] = {}
    for name, value in re.findall(r"^(\w+)=(.*)$", text, re.M):
        settings.setdefault(name, []).append(value)
    return settings


def test_the_unit_of_a_node_is_as_hardened_as_the_servers_and_ends_with_no_other_unit() -> None:
    server, node = (
        read_settings((DEPLOY / "systemd" / f"{name}.service").read_text()) for name in ("toolgate", "toolgate-node")
    )
    own = {"Description", "Documentation", "After", "ExecStart", "EnvironmentFile", "Environment", "MemoryMax"}
    own |= {"StateDirectory", "WorkingDirectory", "RuntimeDirectory", "RuntimeDirectoryMode", "InaccessiblePaths"}
    assert {name for name in server | node if server.get(name) != node.get(name)} - own == {
        "Wants",  # the server's: a network
        "TimeoutStartSec",  # a node upgrades nothing
        "Sockets",
    }
    assert not {"PartOf", "BindsTo", "Requires", "Sockets"} & node.keys()
    assert node["User"] == server["User"]  # the socket lets nobody else in but root
    [start], [folder] = node["ExecStart"], node["RuntimeDirectory"]
    assert start.endswith(f" node --listen unix:/run/{folder}/node.sock")
    assert node["RuntimeDirectoryMode"] == node["StateDirectoryMode"] == ["0700"]


def test_a_gateways_unit_has_all_that_would_break_a_sandbox_and_names_its_node() -> None:
    server, gateway, node = (
        (DEPLOY / "systemd" / name).read_text()
        for name in ("toolgate.service", "toolgate-gateway.conf", "toolgate-node.service")
    )
    _, _, absent = server.partition("# Deliberately absent.")
    named = set(re.findall(r"\b(?:Protect|Restrict|Proc|Memory)[A-Z]\w+", absent.partition("[Install]")[0]))
    told = read_settings(gateway)
    assert len(named) > 6 and named | {"RestrictNamespaces"} <= told.keys()
    [address] = re.findall(r"--listen (\S+)", node)
    assert told["Environment"] == [f"TOOLGATE_NODE={address}"]
    assert not {"Requires", "BindsTo"} & told.keys() and told["After"] == told["Wants"] == ["toolgate-node.service"]


def test_the_guide_gives_docker_the_same_rights_as_compose_and_no_file_that_is_not_there() -> None:
    guide = (ROOT / "docs" / "container.md").read_text()
    [trial, alone] = [block for block in re.findall(r"```sh[^\n]*\n(.*?)```", guide, re.S) if "docker build" in block]
    given = {
        option.removeprefix("no-new-privileges:").replace("seccomp=", "seccomp=deploy/")
        for option in read("compose.yaml")["services"]["toolgate"]["security_opt"]
    }
    for block in (trial, alone):
        assert set(re.findall(r"--security-opt (\S+)", block)) == {
            "no-new-privileges" if option == "true" else re.sub(r"\$\{\w+:-(\w+)\}", r"\1", option) for option in given
        }
        assert "--read-only" in block and "--cap-drop ALL" in block and "--cap-add" not in block
    [uid] = [block for block in re.findall(r"```sh[^\n]*\n(.*?)```", guide, re.S) if "--user 0" in block]
    assert set(re.findall(r"--cap-add (\w+)", uid)) == set(CAPABILITIES)
    added = read("kubernetes-baseline/deployment.yaml")["spec"]["template"]["spec"]["containers"][0]["securityContext"]
    assert set(added["capabilities"]["add"]) == set(CAPABILITIES)
    named = set(re.findall(r"\bdeploy/[\w./-]*\w", guide))
    assert [
        name
        for name in named
        if not (ROOT / name).exists() and name not in ("deploy/.env", "deploy/toolgate") and "caddy" not in name
    ] == []


def test_what_the_guide_types_to_engines_and_clusters_names_what_is_there() -> None:
    """No engine or cluster is here: nothing runs `docker`, `podman` and `kubectl` lines. What they name is checked."""
    compose = read("compose.node.yaml")  # it has compose.yaml's services, too
    scale = read("compose.scale.yaml")["services"]
    guides = (page("docs/container.md"), page("docs/nodes.md"), page("docs/replicas.md"))
    blocks = [block for guide in guides for block in guide.of("sh") if block.excuse in UNTYPED]
    assert {block.excuse for block in blocks} == UNTYPED
    typed = [line for block in blocks for line in block.text.replace("\\\n", " ").splitlines()]
    named = {path for line in typed for path in re.findall(r"> replicas/(\S+)$", line)} | {"ca.crt"}
    for line in typed:
        words = shlex.split(line.removeprefix("sudo ").strip("() "), comments=True)
        match words:
            case ["docker", "compose", "-f", "deploy/compose.yaml" | "deploy/compose.node.yaml", *rest] if (
                "exec" in rest
            ):
                service, *command = [word for word in rest[1:] if not word.startswith("-")]
                assert service in compose["services"] and is_ours(command), line
            case ["docker", "compose", "-f", "deploy/compose.scale.yaml", "exec", service, *command]:
                assert service in scale and is_ours(command), line
            case ["docker", "compose", "-f", "deploy/compose.scale.yaml", "up" | "build", *rest]:
                assert {word for word in rest if not word.startswith("-")} <= scale.keys(), line
            case ["docker", "compose", "-f", "deploy/compose.node.yaml", "run", *rest]:
                [volume] = [word for word in rest if word.endswith(":/old")]
                assert "node" in rest and volume == f"{compose['name']}_state:/old"
            case ["docker", "compose", "-f", "deploy/compose.yaml" | "deploy/compose.node.yaml", "up" | "build", *rest]:
                assert {word for word in rest if not word.startswith("-")} <= compose["services"].keys()
            case ["docker" | "podman", "run", *options]:
                check_run(options, line)
            case ["docker" | "podman", "build", *options]:
                assert (ROOT / options[options.index("-f") + 1]).is_file() and options[-1] == ".", line
            case ["kubectl", "apply", "-k", folder, "-n", "toolgate"]:
                assert (ROOT / folder / "kustomization.yaml").is_file()
            case ["kubectl", "exec", "-n", "toolgate", "-it", "deploy/toolgate", "--", *command]:
                assert is_ours(command)
            case ["kubectl", ("create" | "label"), "namespace", "toolgate", *_]:
                pass
            case ["kubectl", "create", "secret", "generic", "toolgate-replicas", *rest]:
                assert rest == ["-n", "toolgate", "--from-file", "replicas"] and named
                manifest = (DEPLOY / "kubernetes-replicas" / "deployment.yaml").read_text()
                assert set(re.findall(r"/etc/toolgate-replicas/([\w-]+)", manifest)) == named - {"ca.crt"}
            case ["kubectl", "create", "secret", "generic", name, "-n", "toolgate", "--from-file", source]:
                key = Path(source.partition("=")[0]).name
                [file] = re.findall(rf"/etc/toolgate-node/{key}\b", SECRETS[name].read_text())[:1]
                assert Path(file).name == key
            case ["toolgate", *_]:
                assert is_ours(words), line
            case ["cp", "ca.crt", "replicas/"] | ["mkdir", "-m", "700", "replicas"]:
                pass
            case ["echo" | "head", *_, target] if target.startswith("replicas/"):
                pass
            case ["cp" | "deploy/make-secrets", source, *_]:
                assert (ROOT / (words[0] if "/" in words[0] else source)).is_file()
            case ["umask" | "git" | "apparmor_parser" | "sed" | "install", *_]:
                pass
            case _:
                raise AssertionError(f"nothing checks this line: {line}")


def check_run(options: list[str], line: str) -> None:
    """Check the options of `docker run` that name something of ours."""
    for option, value in pairwise(options):
        match option:
            case "-e":
                assert value.partition("=")[0] in VARIABLES, line
            case "-v" if value.startswith("toolgate:"):
                assert value.partition(":")[2] in IMAGE.volumes, line
            case "-p":
                assert value.endswith(f":{IMAGE.ports[0]}"), line
            case "--security-opt" if value.startswith("seccomp="):
                assert (ROOT / value.removeprefix("seccomp=")).is_file(), line
            case _:
                pass


def is_ours(command: list[str]) -> bool:
    """Return whether the words begin with a command of `toolgate`. Its options are not checked."""
    words = [word for word in command[1:] if not word.startswith("-")]
    name = next((name for name in COMMANDS if words[: len(name.split())] == name.split()), None)
    return command[0] == "toolgate" and name is not None
