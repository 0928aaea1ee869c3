"""Build an image from a Dockerfile without an engine: run its instructions in folders. As root.

Debian's and Python's packages come from this machine's sources. Only the instructions of our Dockerfile are supported,
and others are refused. The first base is made by debootstrap; RUN uses chroot, in its own mount and process
namespace."""

import contextlib
import fnmatch
import json
import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

WITHIN = 1200.0  # seconds for one instruction: Chromium comes with a hundred packages
SUITE = "bookworm"
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
VARIABLE = re.compile(r"\$\{(\w+)\}|\$(\w+)")
MOUNT = re.compile(r"--mount=type=cache,target=(\S+?)(?:,\S+)?\s+")


@dataclass(frozen=True, slots=True)
class Instruction:
    name: str
    rest: str


@dataclass
class Image:
    """The image's run configuration, with `environment` as the program gets it."""

    environment: dict[str, str] = field(default_factory=lambda: {"PATH": PATH})
    labels: dict[str, str] = field(default_factory=dict[str, str])
    arguments: dict[str, str] = field(default_factory=dict[str, str])
    volumes: list[str] = field(default_factory=list[str])
    ports: list[int] = field(default_factory=list[int])
    workdir: str = "/"
    user: str = "0"
    stop: str = "SIGTERM"
    entrypoint: list[str] = field(default_factory=list[str])
    command: list[str] = field(default_factory=list[str])
    health: list[str] = field(default_factory=list[str])

    @property
    def uid(self) -> int:
        return int(self.user.partition(":")[0])


def instructions(text: str) -> list[Instruction]:
    """Return the instructions, with comments removed and continued lines joined."""
    lines = [line for line in text.splitlines() if not line.lstrip().startswith("#")]
    joined = re.sub(r"\\\n\s*", "", "\n".join(lines))
    split = (line.strip().partition(" ") for line in joined.splitlines() if line.strip())
    return [Instruction(name.upper(), rest.strip()) for name, _, rest in split]


def read(text: str, **arguments: str) -> Image:
    """Return the image that the last stage makes, without making it."""
    *_, (_, _, image) = _stages(text, arguments)
    return image


class Build:
    """Builds a Dockerfile in `folder`; `kept` caches downloads."""

    def __init__(self, context: Path, folder: Path, kept: Path) -> None:
        self.context, self.folder, self.kept = context, folder, kept
        self.roots: dict[str, Path] = {}
        self.root = folder

    def run(self, text: str, **arguments: str) -> Image:
        """Build it; the result is in `root`."""
        made = Image()
        for name, steps, made in _stages(text, arguments):  # noqa: B007  # the last one is returned
            self.root = self.roots[name] = self.folder / (name or "last")
            self._copy(self._base(), self.root)
            done = Image()
            done.arguments.update(arguments)
            for step in steps:
                _note(done, step, arguments)
                match step.name:
                    case "RUN":
                        self._run(step.rest, done)
                    case "COPY":
                        self._add(step.rest, done)
                    case "WORKDIR":
                        (self.root / done.workdir[1:]).mkdir(parents=True, exist_ok=True)
                    case _:
                        pass
        return made

    def _base(self) -> Path:
        base = self.folder / "base"
        if base.exists():
            return base
        debs = self.kept / "debs"
        debs.mkdir(parents=True, exist_ok=True)
        words = ["debootstrap", "--variant=minbase", f"--cache-dir={debs.resolve()}", SUITE, str(base), mirror()]
        _must(words)
        return base

    @staticmethod
    def _copy(source: Path, target: Path) -> None:
        _must(["cp", "-a", "--reflink=auto", str(source), str(target)])

    def _run(self, line: str, image: Image) -> None:
        """Run as root, with this machine's package sources, and remove them from the image afterwards."""
        lent = [*_sources(), *_authorities().values()]
        for target in MOUNT.findall(line):
            kept = self.kept / target.strip("/").replace("/", "-")
            kept.mkdir(parents=True, exist_ok=True)
            lent.append((str(kept.resolve()), target))
        made = [each for _, target in lent for each in self._places(target)]
        mounts = [
            f"mount --rbind {shlex.quote(source)} {shlex.quote(f'{self.root}{target}')}" for source, target in lent
        ]
        devices = [f"mount --rbind /dev {self.root}/dev", f"mount -t proc proc {self.root}/proc"]
        script = "\n".join(["set -e", "mount --make-rprivate /", *devices, *mounts, 'exec chroot "$0" /bin/sh -c "$1"'])
        environment = {**_lent_environment(), **image.environment, **image.arguments, "HOME": "/root"}
        within = f"cd {shlex.quote(image.workdir)} && {MOUNT.sub('', line)}"
        namespaces = ["unshare", "--mount", "--pid", "--fork", "--kill-child"]
        try:
            _must([*namespaces, "sh", "-c", script, str(self.root), within], environment)
        finally:
            for path in reversed(made):
                with contextlib.suppress(OSError):  # the image has another file there now
                    path.rmdir() if path.is_dir() else path.unlink()

    def _places(self, target: str) -> Iterator[Path]:
        """Make missing mount points, and yield those made."""
        place = Path(f"{self.root}{target}")
        files = {inside for source, inside in [*_sources(), *_authorities().values()] if os.path.isfile(source)}
        for each in [*reversed(place.parents), place]:
            if each.is_relative_to(self.root) and not each.exists():
                each.touch() if each == place and target in files else each.mkdir()
                yield each

    def _add(self, rest: str, image: Image) -> None:
        words = shlex.split(rest)
        stage = words.pop(0).removeprefix("--from=") if words[0].startswith("--from=") else None
        *sources, target = words
        for source in sources:
            home = self.roots[stage] if stage is not None else self.context
            found = home / source.strip("/")
            place = self.root / os.path.join(image.workdir, target).lstrip("/")
            if stage is None:
                self._add_context(found, place, target.endswith("/"))
            else:
                place.parent.mkdir(parents=True, exist_ok=True)
                self._copy(found, place)

    def _add_context(self, found: Path, place: Path, into: bool) -> None:
        """Add the files of the clone that .dockerignore allows."""
        sent = [path for path in [found, *found.rglob("*")] if path.is_file() and self.is_sent(path)]
        assert sent, f"{found} is not there, or .dockerignore keeps it"
        for path in sent:
            goal = place / path.relative_to(found) if found.is_dir() else place / path.name if into else place
            goal.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(path, goal)

    def is_sent(self, path: Path) -> bool:
        """Return whether an engine gets the file: the last matching line for it, or for a folder above, decides."""
        relative = path.relative_to(self.context)
        names = [str(relative), *map(str, relative.parents[:-1])]
        sent = True
        for line in (self.context / ".dockerignore").read_text().splitlines():
            pattern = line.removeprefix("!").removeprefix("**/")
            whole = not line.removeprefix("!").startswith("**/")
            if line and not line.startswith("#"):
                matched = any(fnmatch.fnmatch(name if whole else name.rpartition("/")[2], pattern) for name in names)
                sent = line.startswith("!") if matched else sent
        return sent


def _stages(text: str, arguments: Mapping[str, str]) -> Iterator[tuple[str, list[Instruction], Image]]:
    """Yield each stage's name, its steps and its image."""
    first = Image()
    name, steps, image = "", list[Instruction](), first
    begun = False
    for step in instructions(text):
        if step.name == "FROM":
            if begun:
                yield name, steps, image
            _, _, name = step.rest.partition(" AS ")
            steps, image, begun = [], Image(), True
        elif not begun:
            assert step.name == "ARG", f"{step.name} before FROM"
        else:
            steps.append(step)
            _note(image, step, arguments)
    yield name, steps, image


def _note(image: Image, step: Instruction, arguments: Mapping[str, str]) -> None:
    """Record a step's part of the run configuration."""
    rest = step.rest
    if step.name not in ("RUN", "HEALTHCHECK", "ENTRYPOINT", "CMD"):
        known = {**image.arguments, **image.environment}
        rest = VARIABLE.sub(lambda match: known.get(match[1] or match[2], ""), rest)
    match step.name:
        case "ARG":
            name, _, default = rest.partition("=")
            image.arguments[name] = arguments.get(name, default.strip('"'))
        case "ENV":
            image.environment.update(_pairs(rest))
        case "LABEL":
            image.labels.update(_pairs(rest))
        case "WORKDIR":
            image.workdir = os.path.join(image.workdir, rest)
        case "USER":
            image.user = rest
        case "VOLUME":
            image.volumes.append(rest)
        case "EXPOSE":
            image.ports.append(int(rest))
        case "STOPSIGNAL":
            image.stop = rest
        case "ENTRYPOINT":
            image.entrypoint = json.loads(rest)
        case "CMD":
            image.command = json.loads(rest)
        case "HEALTHCHECK":
            image.health = json.loads(rest.partition("CMD ")[2])
        case "RUN" | "COPY":
            pass
        case _:
            raise ValueError(f"{step.name} is not known here")


def _pairs(rest: str) -> dict[str, str]:
    return dict(word.split("=", 1) for word in shlex.split(rest))


def mirror() -> str:
    """Return this machine's Debian mirror."""
    files = [*Path("/etc/apt").glob("sources.list"), *Path("/etc/apt/sources.list.d").glob("*.*")]
    told = "\n".join(path.read_text() for path in sorted(files, key=lambda path: "debian" not in path.name))
    found = re.search(r"^(?:URIs:|deb(?: \[[^\]]*\])?)\s+(\S+)", told, re.M)
    assert found, "this machine has no source of Debian's packages"
    return found[1]


def _sources() -> list[tuple[str, str]]:
    """Return the files with this machine's sources for apt and pip, and their temporary places in the image."""
    told = ["/etc/resolv.conf", "/etc/apt", "/etc/pip.conf", "/root/.config/pip"]
    told += [value for value in _environment().values() if os.path.isdir(value)]
    return [(path, path) for path in told if os.path.exists(path)]


def _authorities() -> dict[str, tuple[str, str]]:
    """Return files of trusted certificates by variable; the image may have another at that path."""
    files = {name: value for name, value in _environment().items() if os.path.isfile(value)}
    return {name: (value, f"/run/lent-{name.lower()}") for name, value in files.items()}


def _lent_environment() -> dict[str, str]:
    return _environment() | {name: inside for name, (_, inside) in _authorities().items()}


def _environment() -> dict[str, str]:
    names = re.compile(r"PIP_.*|SSL_CERT_FILE|.*_CA_BUNDLE|https?_proxy|HTTPS?_PROXY|no_proxy|NO_PROXY")
    return {name: value for name, value in os.environ.items() if names.fullmatch(name)}


def _must(words: Sequence[str], environment: Mapping[str, str] | None = None) -> None:
    done = subprocess.run(
        words, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=WITHIN
    )
    assert done.returncode == 0, (words, done.stdout[-3000:], done.stderr[-3000:])
