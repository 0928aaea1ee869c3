"""An empty Debian with its own systemd, files, processes and network, in namespaces of this machine, beside another
host. As root.

The files are an overlay over a debootstrap of the suite, made once and cached. Its network has no way out: only the
commands that download run in this machine's network. Unlike a real machine it has no kernel of its own, no devices, no
AppArmor and no DNS."""

import contextlib
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from tests.clients.raw_client import PATIENCE, eventually
from tests.deploy.image import mirror

WITHIN = 600.0  # seconds for one command: it may download Chromium
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
ADDRESS, BESIDE = "203.0.114.7", "203.0.114.8"  # public, so that checks for public addresses pass
VARIABLES = ("PIP_CERT", "PIP_INDEX_URL", "http_proxy", "https_proxy", "no_proxy")  # how this machine downloads
PIP_FILES = ("/etc/pip.conf", "/root/.config/pip")

HOST_BESIDE = 'mount --make-rprivate /; mount --bind "$0" /etc/hosts; exec sleep infinity'
# $1: the base, $2: the machine's folder, $3: a name; then pairs of a path here and its path there
BOOT = """
base=$1 top=$2 name=$3; shift 3
mount --make-rprivate /
mount -t cgroup2 cgroup2 $top/group
mkdir $top/group/$name
echo 0 > $top/group/$name/cgroup.procs
umount $top/group
exec unshare --cgroup bash -euc '
base=$1 top=$2; shift 2
mount -t overlay overlay -o lowerdir=$base,upperdir=$top/upper,workdir=$top/work $top/root
cd $top/root
mount -t proc proc proc
mount -t sysfs -o ro sysfs sys
mount -t cgroup2 cgroup2 sys/fs/cgroup
for folder in run tmp dev; do mount -t tmpfs tmpfs $folder; done
chmod 1777 tmp
for node in null zero full random urandom tty; do touch dev/$node; mount --bind /dev/$node dev/$node; done
mkdir dev/shm dev/pts run/old
mount -t tmpfs -o mode=1777 tmpfs dev/shm
mount -t devpts -o newinstance,ptmxmode=666 devpts dev/pts
ln -s pts/ptmx dev/ptmx
ln -s /proc/self/fd dev/fd
for number in 0 1 2; do ln -s /proc/self/fd/$number dev/$(echo stdin stdout stderr | cut -d" " -f$((number + 1))); done
while [ $# -gt 0 ]; do
    if [ -d $1 ]; then mkdir -p .$2; else mkdir -p .$(dirname $2); touch .$2; fi
    mount --bind $1 .$2
    shift 2
done
hostname tools
pivot_root . run/old
umount -l run/old
exec env -i container=tests PATH=/usr/sbin:/usr/bin /lib/systemd/systemd --system --log-target=journal
' machine $base $top "$@"
"""


def base(suite: str, cache: Path) -> Path:
    """Return a folder with the suite's packages of the priorities "required" and "important", as installers have."""
    missing = [name for name in ("debootstrap", "ip", "nsenter", "git") if shutil.which(name) is None]
    assert not missing, f"{missing} are missing: apt-get install debootstrap iproute2 util-linux git"
    folder = cache / suite
    if not folder.exists():
        cache.mkdir(parents=True, exist_ok=True)
        draft = cache / f"{suite}.new"
        shutil.rmtree(draft, ignore_errors=True)
        debs = cache / f"{suite}.debs"
        debs.mkdir(exist_ok=True)
        words = ["debootstrap", f"--cache-dir={debs.resolve()}", suite, str(draft), mirror()]
        made = subprocess.run(words, capture_output=True, text=True, timeout=WITHIN)
        assert made.returncode == 0, made.stdout[-3000:] + made.stderr
        draft.rename(folder)
    return folder


class Debian:
    """A machine that runs. `folder` takes its changes, `cache` keeps downloads, `hosts` is its /etc/hosts."""

    def __init__(self, base: Path, folder: Path, cache: Path, hosts: str) -> None:
        self.root = folder / "root"
        self._folder, self._hosts, self._cwd = folder, folder / "hosts", "/root"
        self._group = f"toolgate-tests-{os.getpid()}-{folder.name}"
        for name in ("upper", "work", "root", "group"):
            (folder / name).mkdir(parents=True)
        self._hosts.write_text(f"127.0.0.1 localhost\n{hosts}")
        binds = {str(self._hosts): "/etc/hosts"}
        for name, path in (("archives", "/var/cache/apt/archives"), ("pip", "/root/.cache/pip")):
            (cache / f"{base.name}.{name}").mkdir(exist_ok=True)
            binds[str((cache / f"{base.name}.{name}").resolve())] = path
        binds |= {path: path for path in PIP_FILES if os.path.exists(path)}
        self._variables = {name: os.environ[name] for name in VARIABLES if name in os.environ}
        if certificates := self._variables.get("PIP_CERT"):
            self._variables["PIP_CERT"] = "/run/pip-certificates"
            binds[certificates] = "/run/pip-certificates"
        spaces = ["--mount", "--pid", "--uts", "--ipc", "--net", "--fork", "--kill-child"]
        words = [str(base.resolve()), str(folder), self._group, *(word for pair in binds.items() for word in pair)]
        self._log = folder / "console"
        with self._log.open("wb") as log:
            self._beside = subprocess.Popen(
                ["unshare", "--net", "--mount", "--fork", "--kill-child", "sh", "-ec", HOST_BESIDE, str(self._hosts)]
            )
            self._process = subprocess.Popen(
                ["unshare", *spaces, "bash", "-euc", BOOT, "boot", *words],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    def boot(self) -> None:
        """Wait until it has booted, and connect it with the host beside it."""
        assert eventually(lambda: self._process.poll() is not None or self._is_booted()), self._log.read_text()
        assert self._process.poll() is None, self._log.read_text()
        link = ["ip", "link", "add", "eth0", "type", "veth", "peer", "name", "eth0", "netns", str(self._beside.pid)]
        for pid, address, words in ((self._first, ADDRESS, link), (self._beside.pid, BESIDE, [])):
            for command in (
                words,
                ["ip", "address", "add", f"{address}/24", "dev", "eth0"],
                ["ip", "link", "set", "eth0", "up"],
                ["ip", "link", "set", "lo", "up"],
            ):
                if command:
                    subprocess.run(["nsenter", f"--net=/proc/{pid}/ns/net", *command], check=True, timeout=PATIENCE)

    def _is_booted(self) -> bool:
        if not self._children():
            return False
        found = subprocess.run(self._enter("systemctl is-system-running"), capture_output=True, text=True)
        return found.stdout.strip() in ("running", "degraded")

    @property
    def _first(self) -> int:
        """This machine's pid of its process 1."""
        return int(self._children()[0])

    def _children(self) -> list[str]:
        return Path(f"/proc/{self._process.pid}/task/{self._process.pid}/children").read_text().split()

    def _enter(self, command: str, *, downloads: bool = False) -> list[str]:
        enter = ["nsenter", f"--target={self._first}", "--mount", "--uts", "--ipc", "--pid", "--cgroup"]
        variables = {"HOME": "/root", "PATH": PATH, "TERM": "dumb", **(self._variables if downloads else {})}
        words = [f"{name}={value}" for name, value in variables.items()]
        return [*enter, *([] if downloads else ["--net"]), "env", "-i", *words, "bash", "-c", command]

    def run(self, command: str, *, downloads: bool = False) -> subprocess.CompletedProcess[str]:
        """Run a command of root's shell in the folder where the last one ended; `downloads` through this machine's
        network."""
        inside = f"cd {self._cwd}; {command}\nended=$?; pwd > /run/tests-cwd; exit $ended"
        words = self._enter(inside, downloads=downloads)
        done = subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=WITHIN)
        self._cwd = self.read("/run/tests-cwd").strip() or self._cwd
        return done

    def read(self, path: str) -> str:
        """Return the text of a file, or ""."""
        return subprocess.run(self._enter(f"cat {path}"), capture_output=True, text=True).stdout

    def write(self, path: str, text: str) -> None:
        subprocess.run(self._enter(f"mkdir -p $(dirname {path}); cat > {path}"), input=text, text=True, check=True)

    def unpack(self, archive: bytes, path: str) -> None:
        """Unpack a tar file into a folder."""
        subprocess.run(self._enter(f"mkdir -p {path}; tar -x --no-same-owner -C {path}"), input=archive, check=True)

    def beside(self, words: Sequence[str], env: Mapping[str, str]) -> list[str]:
        """Return the command that runs a program of this machine on the host beside it."""
        enter = ["nsenter", f"--target={self._beside.pid}", "--net", "--mount"]
        return [*enter, "env", *(f"{name}={value}" for name, value in env.items()), *words]

    def stop(self) -> None:
        """End all its processes, and remove its files."""
        for process in (self._process, self._beside):
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(signal.SIGKILL)
            process.wait(PATIENCE)
        group = self._folder / "group"
        mine = group / self._group
        remove = f"mount -t cgroup2 cgroup2 {group}; [ ! -d {mine} ] || find {mine} -depth -type d -exec rmdir {{}} +"
        assert eventually(
            lambda: subprocess.run(["unshare", "--mount", "sh", "-c", remove], capture_output=True).returncode == 0
        )
        shutil.rmtree(self._folder)


@contextlib.contextmanager
def debian(suite: str, folder: Path, cache: Path, hosts: str) -> Iterator[Debian]:
    """Yield a machine that has booted, and end it."""
    machine = Debian(base(suite, cache), folder, cache, hosts)
    try:
        machine.boot()
        yield machine
    finally:
        machine.stop()
