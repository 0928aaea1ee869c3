"""deploy/systemd/toolgate.service under a real systemd booted in namespaces: hardened, it has its sandbox and ends in
order. No other service of the machine starts with it."""

import contextlib
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.clients.raw_client import ROOT
from tests.deploy import engine

UNITS = ROOT / "deploy" / "systemd"
SYSTEMD = "/lib/systemd/systemd"
WITHIN = 120.0  # seconds
ALONE = "[Unit]\nDefaultDependencies=no\n"

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
BOOT = """
set -e
mount --make-rprivate /
mount -t tmpfs tmpfs {top}
mkdir {top}/upper {top}/work {top}/root
mount -t overlay overlay -o lowerdir=/,upperdir={top}/upper,workdir={top}/work {top}/root
cd {top}/root
mount -t proc proc proc
mount -t sysfs sysfs sys
mount -t cgroup2 cgroup2 sys/fs/cgroup
for folder in run tmp dev; do mount -t tmpfs tmpfs $folder; done
chmod 1777 tmp
for name in null zero full random urandom tty; do touch dev/$name; mount --bind /dev/$name dev/$name; done
mkdir -p dev/shm dev/pts run/told run/old opt/toolgate etc/toolgate etc/sysusers.d
mount -t devpts -o newinstance,ptmxmode=666 devpts dev/pts
ln -s pts/ptmx dev/ptmx
mount --bind {told} run/told
mount -t overlay overlay -o lowerdir={program} opt/toolgate
ln -sf /opt/toolgate/bin/toolgate usr/local/bin/toolgate
rm -rf etc/systemd/system/*
cp -r {units}/. etc/systemd/system
systemd-sysusers --root=. {shipped}/toolgate.sysusers
cp {told}/toolgate.env etc/toolgate/toolgate.env
pivot_root . run/old
umount -l run/old
exec env -i container=tests PATH=/usr/local/bin:/usr/bin:/usr/sbin {systemd} --system --unit=both.target
"""


@pytest.mark.soak
def test_the_unit_runs_as_hardened_as_it_is_with_a_sandbox_and_ends_in_order(tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can begin systemd")
    assert Path(SYSTEMD).exists(), "systemd is missing: apt-get install systemd"
    with contextlib.closing(socket.create_server(("127.0.0.1", 0))) as free:
        port = free.getsockname()[1]
    told, units, top = tmp_path / "told", tmp_path / "units", tmp_path / "top"
    for folder in (told, units, units / "toolgate.service.d", top):
        folder.mkdir()
    options = (UNITS / "toolgate.env").read_text() + f"TOOLGATE_PORT={port}\n"
    (told / "toolgate.env").write_text(options)
    (told / "look.sh").write_text(LOOK.format(port=port))
    (units / "toolgate.service").write_text((UNITS / "toolgate.service").read_text())
    heard = "[Service]\nStandardError=append:/run/told/log\n"
    (units / "toolgate.socket").write_text((UNITS / "toolgate.socket").read_text().replace(":8080", f":{port}"))
    (units / "toolgate.service.d" / "tests.conf").write_text(ALONE + heard)
    looks = "[Service]\nType=oneshot\nExecStart=sh /run/told/look.sh\nStandardOutput=append:/run/told/look\n"
    (units / "look.service").write_text(f"{ALONE}After=toolgate.service\n{looks}")
    (units / "both.target").write_text(f"{ALONE}Requires=toolgate.service look.service\n")
    layers = installed(tmp_path / "program")
    script = BOOT.format(
        top=top,
        told=told,
        units=units,
        shipped=UNITS,
        systemd=SYSTEMD,
        program=":".join(map(str, layers)),
    )
    spaces = ["--mount", "--pid", "--uts", "--ipc", "--cgroup", "--fork", "--kill-child"]
    booted = subprocess.run(
        ["unshare", *spaces, "bash", "-c", script], capture_output=True, text=True, timeout=WITHIN, check=False
    )
    assert booted.returncode == 0, booted.stderr
    log = (told / "log").read_text()
    *_, active, bound, unprivileged, filtered, owner, result, status = (told / "look").read_text().splitlines()
    assert "sandbox bwrap: namespaces and a system call filter, this user, network public" in log
    assert (active, owner) == ("ActiveState=active", "toolgate 700")
    assert (bound, unprivileged, filtered) == ("CapBnd:\t0000000000000000", "NoNewPrivs:\t1", "Seccomp:\t2")
    assert (result, status) == ("Result=success", "ExecMainStatus=0")
    assert "Traceback" not in log
    assert log.count("on the socket that was handed over") == 2
    assert (told / "waited").read_text() == "ready\n"  # it arrived while the service was down, and was not refused


def installed(program: Path) -> list[Path]:
    """Return /opt/toolgate with the installed packages, run by the system's Python, since homes are hidden."""
    engine.install(program)
    version = f"{sys.version_info[0]}.{sys.version_info[1]}"
    assert Path(f"/usr/bin/python{version}").exists(), (
        f"the system's Python {version} is missing: apt-get install python3"
    )
    for name in ("python", "python3", f"python{version}"):
        (program / "bin" / name).symlink_to(f"/usr/bin/python{version}")
    (program / "pyvenv.cfg").write_text("home = /usr/bin\ninclude-system-site-packages = false\n")
    return [program, Path(sys.prefix)]
