"""The units of deploy/systemd under a real systemd: hardened, the server has its sandbox and ends in order; with a node
it restarts while a command goes on."""

from pathlib import Path

import pytest

from tests.deploy.systemd import LOGGED, UNITS, boot
from tests.docs.pages import page
from tests.servers.reserved_port import kept_port

# What asks systemd about the server once it accepts requests, and then ends everything
LOOK = """
for turn in $(seq 100); do toolgate health --port {port} && break; systemctl -q is-active toolgate || break; done
(sleep 0.1; exec toolgate health --port {port}) >/run/told/waited 2>&1 &
systemctl restart toolgate
wait
systemctl show toolgate -p ActiveState
grep -E '^(NoNewPrivs|CapBnd|Seccomp):' /proc/$(systemctl show toolgate -p MainPID --value)/status
stat -c '%U %a' /var/lib/toolgate
systemctl stop toolgate.socket toolgate
systemctl show toolgate -p Result -p ExecMainStatus
systemctl exit 0
"""
# Type the page's lines, then restart the gateway and the node below a command that prints numbers
WITH_NODE = """
call() {{ toolgate call "$@" --url http://127.0.0.1:{port}/mcp; }}
call Bash command='echo before > file'
(set -e
{lines}
) || echo failed
call Bash command='cat file; pwd; ls -d /var/lib/toolgate/* /var/lib/toolgate-node/* /run/toolgate-node 2>&-; true'
call BackgroundBash command='for n in $(seq 3000); do echo $n; sleep 0.02; done'
node=$(systemctl show toolgate-node -p MainPID --value)
systemctl restart toolgate
call ListBgTasks
[ $node = $(systemctl show toolgate-node -p MainPID --value) ] && echo same node
systemctl restart toolgate-node
call ListBgTasks
call Bash command='cat file'
grep -hE '^(NoNewPrivs|CapBnd|Seccomp):' /proc/$(systemctl show toolgate -p MainPID --value)/status
stat -c '%n %U %a' /var/lib/toolgate /var/lib/toolgate-node /run/toolgate-node /run/toolgate-node/node.sock
systemctl stop toolgate.socket toolgate toolgate-node
systemctl show toolgate -p Result
systemctl show toolgate-node -p Result
systemctl exit 0
"""


@pytest.mark.soak
def test_the_unit_runs_as_hardened_as_it_is_with_a_sandbox_and_ends_in_order(tmp_path: Path) -> None:
    port = kept_port()
    options = (UNITS / "toolgate.env").read_text() + f"TOOLGATE_PORT={port}\n"
    log, lines = boot(tmp_path, port, options, LOOK.format(port=port), {"toolgate.service": LOGGED})
    *_, active, bound, unprivileged, filtered, owner, result, status = lines
    assert "sandbox bwrap: namespaces and a system call filter, this user, network public" in log
    assert (active, owner) == ("ActiveState=active", "toolgate 700")
    assert (bound, unprivileged, filtered) == ("CapBnd:\t0000000000000000", "NoNewPrivs:\t1", "Seccomp:\t2")
    assert (result, status) == ("Result=success", "ExecMainStatus=0")
    assert "Traceback" not in log
    assert log.count("on the socket that was handed over") == 2
    assert (tmp_path / "told" / "waited").read_text() == "ready\n"  # it arrived while the service was down


@pytest.mark.soak
def test_a_command_at_the_node_goes_on_while_the_gateway_restarts(tmp_path: Path) -> None:
    port = kept_port()
    [block] = [block for block in page("docs/nodes.md").of("sh") if "toolgate-gateway.conf" in block.text]
    lines = [
        line for line in block.text.splitlines() if "/opt/toolgate-node" not in line
    ]  # it is there: nothing downloads
    assert len(lines) == len(block.text.splitlines()) - 3
    script = WITH_NODE.format(port=port, lines="\n".join(lines))
    options = f"TOOLGATE_AUTH=none\nTOOLGATE_PORT={port}\n"
    log, lines = boot(tmp_path, port, options, script, {"toolgate.service": LOGGED, "toolgate-node.service": LOGGED})
    command = "for n in $(seq 3000); do echo $n; sleep 0.02; done"
    started, goes_on, same, killed = lines[5:9]
    assert lines[:5] == [
        "(no output)",
        "before",
        "/var/lib/toolgate-node/workspaces/local",
        "/var/lib/toolgate-node/spool",  # the way to its workspace; no socket, and nothing of the gateway's state
        "/var/lib/toolgate-node/workspaces",
    ], log
    task = started.split()[2]
    assert goes_on.startswith(f"{task}  {command}  is running for ") and same == "same node", log
    assert killed.startswith(f"{task}  {command}  was killed after "), log
    assert lines[9:] == [
        "before",
        "CapBnd:\t0000000000000000",
        "NoNewPrivs:\t1",
        "Seccomp:\t2",
        "/var/lib/toolgate toolgate 700",
        "/var/lib/toolgate-node toolgate 700",
        "/run/toolgate-node toolgate 700",
        "/run/toolgate-node/node.sock toolgate 600",
        "Result=success",
        "Result=success",
    ], log
    assert "Traceback" not in log and log.count("on the socket that was handed over") == 3
