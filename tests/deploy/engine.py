"""A container of an image: started, inspected and ended like by `docker run`, `exec` and `stop`. As root."""

import contextlib
import errno
import http.client
import json
import os
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyseccomp

from tests.clients.raw_client import PATIENCE, ROOT, children, eventually
from tests.deploy.image import Image
from tests.servers.reserved_port import kept_port

RUNTIME = Path(__file__).with_name("runtime.py")
ACTIONS = {"SCMP_ACT_ALLOW": pyseccomp.ALLOW}
COMPARED = {"SCMP_CMP_EQ": pyseccomp.EQ}
NEW = 0x7E02_0000  # the flags of clone that make namespaces
MAIN = "import sys\nfrom toolgate.server.__main__ import main\nsys.exit(main())\n"


@dataclass(frozen=True, slots=True)
class Root:
    """The folder that is the container's `/`. `lent` are the machine's own folders at the same path; `layers` are
    folders on top of each other, the top one first, by path."""

    path: Path
    lent: Sequence[Path] = ()
    layers: Mapping[str, Sequence[Path]] = field(default_factory=dict[str, Sequence[Path]])


class Container:
    """A container. Its program gets `environment` besides the image's. `shared` are folders of the machine, by path."""

    def __init__(
        self,
        image: Image,
        root: Root,
        folder: Path,
        *,
        environment: Mapping[str, str] | None = None,
        user: int | None = None,
        capabilities: Sequence[str] = (),
        masked: bool = False,
        pod: bool = False,
        filter: bytes = b"",
        command: Sequence[str] | None = None,
        shared: Mapping[str, Path] | None = None,
    ) -> None:
        folder.mkdir(exist_ok=True)
        self.image, self.stderr, self.data = image, folder / "stderr.log", folder / "data"
        self.user = image.uid if user is None else user
        if not self.data.exists():
            self.data.mkdir()
            os.chown(self.data, image.uid, image.uid)
        self.port = kept_port()
        self.url = f"http://127.0.0.1:{self.port}"
        own = {"HOME": image.workdir, "TOOLGATE_PORT": str(self.port), "TOOLGATE_PUBLIC_URL": self.url}
        self.environment = {**image.environment, **own, **(environment or {})}
        words = [*image.entrypoint, *(image.command if command is None else command)]
        told = {
            "root": str(root.path),
            "workdir": image.workdir,
            "user": self.user,
            "capabilities": list(capabilities),
            "filter": filter.hex(),
            "memory": ["/tmp"],
            "writable": [
                *([str(self.data), volume] for volume in image.volumes),
                *([str(there), path] for path, there in (shared or {}).items()),
            ],
            "lent": [str(path) for path in root.lent],
            "layers": {path: ":".join(map(str, folders)) for path, folders in root.layers.items()},
            "masked": masked,
            "pod": pod,
            "environment": self.environment,
            "command": words,
        }
        with self.stderr.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-I", "-S", str(RUNTIME)], stdin=subprocess.PIPE, stdout=log, stderr=log, cwd="/"
            )
        assert self.process.stdin is not None
        with self.process.stdin as given:
            given.write(json.dumps(told).encode())

    def log(self) -> str:
        return self.stderr.read_text(errors="replace")

    def serving(self) -> bool:
        """Return whether it becomes ready."""
        eventually(lambda: self.process.poll() is not None or self._is_ready())
        return self.process.poll() is None and self._is_ready()

    def _is_ready(self) -> bool:
        with contextlib.closing(http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE)) as connection:
            try:
                connection.request("GET", "/ready")
                return connection.getresponse().status == 200
            except OSError:
                return False

    @property
    def first(self) -> int:
        """The machine's pid of its process 1."""
        told = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text()
        return int(told.split()[0])

    def execute(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Run another program in it, as its user, with its environment."""
        become = ["setpriv", "--reuid", str(self.user), "--regid", str(self.user), "--clear-groups"]
        confined = [*become, "--inh-caps=-all", "--bounding-set=-all", "--no-new-privs"]
        enter = ["nsenter", "--target", str(self.first), "--mount", "--uts", "--ipc", "--pid"]
        given = ["env", "-i", *(f"{name}={value}" for name, value in self.environment.items())]
        return subprocess.run(
            [*enter, *given, *confined, *words], capture_output=True, text=True, timeout=PATIENCE, check=False
        )

    def mounts(self) -> Iterator[tuple[str, set[str]]]:
        """Yield each mount point and its options."""
        for line in Path(f"/proc/{self.first}/mounts").read_text().splitlines():
            _, path, _, options, *_ = line.split()
            yield path, set(options.split(","))

    def zombies(self) -> list[str]:
        """Return the ended processes in it that were not reaped."""
        space = os.readlink(f"/proc/{self.first}/ns/pid")
        found = []
        for folder in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                if os.readlink(folder / "ns" / "pid") == space and "\nState:\tZ" in (folder / "status").read_text():
                    found.append((folder / "status").read_text().splitlines()[0])
        return found

    def stop(self) -> int:
        """Stop it by the image's signal, and return its exit code."""
        if self.process.poll() is None:
            self.process.send_signal(getattr(signal, self.image.stop))
        return self.process.wait(PATIENCE)

    def kill(self) -> None:
        if self.process.poll() is None:
            for pid in (*children(self.process.pid), self.process.pid):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        self.process.wait(PATIENCE)


@contextlib.contextmanager
def container(image: Image, root: Root, folder: Path, **how: Any) -> Iterator[Container]:
    """Yield a container, and end it."""
    made = Container(image, root, folder, **how)
    try:
        yield made
    finally:
        made.kill()


def engine_filter(profile: Path, *, spaces: bool = True) -> bytes:
    """Return an engine's profile as a seccomp program; without `spaces` it is as strict about namespaces as engines'
    own.

    Calls unknown to the library or the machine are left out, as engines do."""
    told = json.loads(profile.read_text())
    rules = pyseccomp.SyscallFilter(pyseccomp.ERRNO(told["defaultErrnoRet"] if spaces else errno.EPERM))
    for row in told["syscalls"]:
        arguments = [pyseccomp.Arg(each["index"], COMPARED[each["op"]], each["value"]) for each in row.get("args", ())]
        for name in () if "unshare" in row["names"] and not spaces else row["names"]:
            held = [] if spaces or name != "clone" else [pyseccomp.Arg(0, pyseccomp.MASKED_EQ, NEW, 0)]
            if pyseccomp.resolve_syscall(pyseccomp.Arch.NATIVE, name) >= 0 and (spaces or name != "clone3"):
                rules.add_rule(ACTIONS[row["action"]], name, *arguments, *held)
    if not spaces:
        rules.add_rule(pyseccomp.ERRNO(errno.ENOSYS), "clone3")
    with tempfile.TemporaryFile() as file:
        rules.export_bpf(file)
        file.seek(0)
        return file.read()


def here(image: Image, folder: Path) -> Root:
    """Return a stand-in for the image's root: this machine's system, and the installed packages at the image's
    paths."""
    root, program, commands = folder / "root", folder / "program", folder / "commands"
    for path in (
        "usr",
        "etc",
        "opt/toolgate",
        "tmp",
        "proc",
        "dev",
        "run/toolgate-node",
        image.workdir[1:],
        *(v[1:] for v in image.volumes),
    ):
        (root / path).mkdir(parents=True)
    for link in filter(Path.is_symlink, map(Path, ("/bin", "/sbin", "/lib", "/lib64"))):
        (root / link.name).symlink_to(link.readlink())
    lent = [Path("/usr"), Path("/etc")]
    python = Path(sys.base_prefix).resolve()
    if not python.is_relative_to("/usr"):
        (root / str(python)[1:]).mkdir(parents=True)
        lent.append(python)
    install(program)
    commands.mkdir()
    (commands / "toolgate").symlink_to("/opt/toolgate/bin/toolgate")
    layers = {"/opt/toolgate": [program, Path(sys.prefix)], "/usr/local/bin": [commands, Path("/usr/local/bin")]}
    return Root(root, lent, layers)


def install(program: Path) -> None:
    """Copy the environment to where it was installed for good, without its link to the clone."""
    [real] = Path(sys.prefix).glob("lib/python3.*/site-packages")
    packages = program / real.relative_to(sys.prefix)
    for name in ("server", "tools", "transports", "plugins"):
        shutil.copytree(ROOT / name, packages / "toolgate" / name, ignore=shutil.ignore_patterns("__pycache__"))
    for link in real.glob("__editable__*"):
        os.mknod(packages / link.name, stat.S_IFCHR)  # in a layer: nothing is there
    (program / "bin").mkdir()
    (program / "bin" / "toolgate").write_text(f"#!/opt/toolgate/bin/python\n{MAIN}")
    (program / "bin" / "toolgate").chmod(0o755)
