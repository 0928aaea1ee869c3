"""Boot a real systemd in namespaces with the units of deploy/systemd, run a script in it, and end it. As root.

No other service of the machine starts with it, and it has the machine's network."""

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.clients.raw_client import ROOT
from tests.deploy import engine

UNITS = ROOT / "deploy" / "systemd"
SYSTEMD = "/lib/systemd/systemd"
WITHIN = 120.0  # seconds
ALONE = "[Unit]\nDefaultDependencies=no\n"
LOGGED = f"{ALONE}[Service]\nStandardError=append:/run/told/log\n"
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
mkdir -p dev/shm dev/pts run/told run/old opt/toolgate etc/toolgate etc/sysusers.d usr/local/src/toolgate
mount -t devpts -o newinstance,ptmxmode=666 devpts dev/pts
ln -s pts/ptmx dev/ptmx
mount --bind {told} run/told
mount --bind {clone} usr/local/src/toolgate
mount -t overlay overlay -o lowerdir={program} opt/toolgate
ln -sf /opt/toolgate/bin/toolgate usr/local/bin/toolgate
ln -sfn /opt/toolgate opt/toolgate-node
rm -rf etc/systemd/system/* var/lib/toolgate var/lib/toolgate-node
cp -r {units}/. etc/systemd/system
systemd-sysusers --root=. {clone}/deploy/systemd/toolgate.sysusers
cp {told}/toolgate.env etc/toolgate/toolgate.env
pivot_root . run/old
umount -l run/old
exec env -i container=tests PATH=/usr/local/bin:/usr/bin:/usr/sbin {systemd} --system --unit=both.target
"""


def boot(folder: Path, port: int, options: str, script: str, drop_ins: Mapping[str, str]) -> tuple[str, list[str]]:
    """Boot with toolgate.service, on `port`, and its `options`, run `script` beside it, and return the log and the
    lines that the script prints.

    - `options` is the text of /etc/toolgate/toolgate.env;
    - `script` must end in `systemctl exit 0`;
    - `drop_ins` are further texts for the units, by unit.
    """
    if os.geteuid() != 0:
        pytest.skip("only root can begin systemd")
    assert Path(SYSTEMD).exists(), "systemd is missing: apt-get install systemd"
    told, units, top = folder / "told", folder / "units", folder / "top"
    for each in (told, units, top):
        each.mkdir()
    (told / "toolgate.env").write_text(options)
    (told / "look.sh").write_text(script)
    (units / "toolgate.service").write_text((UNITS / "toolgate.service").read_text())
    (units / "toolgate.socket").write_text((UNITS / "toolgate.socket").read_text().replace(":8080", f":{port}"))
    for unit, text in drop_ins.items():
        (units / f"{unit}.d").mkdir()
        (units / f"{unit}.d" / "tests.conf").write_text(text)
    looks = "[Service]\nType=oneshot\nExecStart=sh /run/told/look.sh\nStandardOutput=append:/run/told/look\n"
    looks += "StandardError=append:/run/told/log\n"
    (units / "look.service").write_text(f"{ALONE}After=toolgate.service\n{looks}")
    (units / "both.target").write_text(f"{ALONE}Requires=toolgate.service look.service\n")
    layers = install(folder / "program")
    words = {"top": top, "told": told, "units": units, "clone": ROOT, "systemd": SYSTEMD}
    inside = BOOT.format(**words, program=":".join(map(str, layers)))
    spaces = ["--mount", "--pid", "--uts", "--ipc", "--cgroup", "--fork", "--kill-child"]
    booted = subprocess.run(
        ["unshare", *spaces, "bash", "-c", inside], capture_output=True, text=True, timeout=WITHIN, check=False
    )
    assert booted.returncode == 0, booted.stderr
    return (told / "log").read_text(), (told / "look").read_text().splitlines()


def install(program: Path) -> list[Path]:
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
