"""Build the arguments for bwrap: the part of the machine that a sandboxed command sees.

Paths that are not named here are left out: the rest of /etc, /home, /root, /run, /var, the state folder, other
workspaces. All is read-only except the workspace, /tmp, /dev/shm and the spool's folder of directories.
"""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/opt", "/nix/store", "/gnu/store")
ETC = (  # what programs need, and no file that may hold secrets
    "alternatives bash.bashrc ca-certificates ca-certificates.conf debian_version fonts gai.conf host.conf inputrc "
    "java* ld.so.cache ld.so.conf ld.so.conf.d locale.conf localtime lsb-release machine-info magic magic.mime "
    "manpath.config mime.types networks nsswitch.conf os-release perl pki/ca-trust pki/tls/certs pki/tls/cert.pem "
    "pki/tls/openssl.cnf protocols python3 redhat-release rpc services ssl/certs ssl/cert.pem ssl/openssl.cnf "
    "terminfo timezone xattr.conf xdg"
)
DEVICES_SHM = "/dev/shm"  # noqa: S108  # the sandbox's own
VAR_TMP = "/var/tmp"  # noqa: S108  # the sandbox's own
NAME = "sandbox"  # the host name inside, unrelated to the real one
USER = "user"


class SandboxView(msgspec.Struct, frozen=True):
    """What commands see. `root` is the workspace, `spool` their output; `hidden_paths` are covered, `readable_paths`
    and `writable_paths` added, and so are `shown_paths`, which may be in hidden ones. `uid` is the user inside.
    `network`: whether the machine's network is shared.
    `writable`: what commands may write besides /tmp and /dev/shm; None means the workspace and `cwd_folder`."""

    root: Path
    spool: Path
    cwd_folder: Path
    hidden_paths: Sequence[Path]
    readable_paths: Sequence[Path]
    uid: int
    gid: int
    tmp: int  # bytes, of /tmp, /var/tmp and /dev/shm each; 0: no limit
    network: bool
    user_namespace: bool
    writable: Sequence[Path] | None = None
    shown_paths: Sequence[Path] = ()
    writable_paths: Sequence[Path] = ()


def bwrap_arguments(view: SandboxView, files: Mapping[str, int]) -> list[str]:
    """Return the arguments for bwrap. `files`: path inside → descriptor of its content."""
    seen = [*map(Path, SYSTEM), *view.readable_paths, *view.writable_paths, view.root]
    hidden = [path for path in view.hidden_paths if any(path.is_relative_to(tree) for tree in seen) and path.exists()]
    bind, writable = ("--bind", [view.cwd_folder]) if view.writable is None else ("--ro-bind", view.writable)
    return [
        *_namespace_arguments(view),
        *(word for path in SYSTEM for word in _system_arguments(path)),
        *(word for path in _etc_paths() for word in _bind_arguments("--ro-bind", path)),
        *(word for path, fd in files.items() for word in ("--perms", "0444", "--ro-bind-data", str(fd), path)),
        *("--proc", "/proc", "--dev", "/dev"),
        *_tmpfs_arguments(DEVICES_SHM, view.tmp),
        *("--remount-ro", "/dev"),
        *_tmpfs_arguments("/tmp", view.tmp),  # noqa: S108  # the sandbox's own
        *("--dir", "/run", "--dir", "/home", "--dir", "/var", *_var_tmp_arguments(view)),
        *(word for path in view.readable_paths for word in _bind_arguments("--ro-bind", path)),
        *_bind_arguments(bind, view.root),
        *(word for path in _parents_of_hidden(hidden, view.root) for word in (bind, str(path), str(path))),
        *(word for path in hidden for word in _hide_arguments(path)),
        *_bind_arguments("--ro-bind", view.spool),
        *(word for path in view.shown_paths for word in _bind_arguments("--ro-bind", path)),
        *(word for path in view.writable_paths for word in _bind_arguments("--bind", path)),
        *(word for path in writable for word in _bind_arguments("--bind", path)),
        *(word for path in hidden if path.is_dir() for word in ("--remount-ro", str(path))),
        *("--remount-ro", "/", "--chdir", "/", "--clearenv"),
    ]


def generate_files(view: SandboxView) -> dict[str, bytes]:
    """Return the generated files by path."""
    user = f"{USER}:x:{view.uid}:{view.gid}:{USER}:{view.root}:/bin/bash\n"
    rest = "root:x:0:0:root:/:/usr/sbin/nologin\nnobody:x:65534:65534:nobody:/:/usr/sbin/nologin\n"
    made = {
        "/etc/passwd": (user + rest).encode("utf-8", "surrogateescape"),
        "/etc/group": f"{USER}:x:{view.gid}:\nroot:x:0:\nnogroup:x:65534:\n".encode(),
        "/etc/hosts": f"127.0.0.1 localhost {NAME}\n::1 localhost\n".encode(),
        "/etc/hostname": f"{NAME}\n".encode(),
    }
    if view.network:
        made |= {path: _read(path) for path in ("/etc/resolv.conf", "/etc/hosts")}
    return made


def _namespace_arguments(view: SandboxView) -> list[str]:
    kinds = ["pid", "ipc", "uts", "cgroup-try", *([] if view.network else ["net"])]
    if view.user_namespace:
        kinds.append("user")
    return [*(f"--unshare-{kind}" for kind in kinds), "--hostname", NAME, "--die-with-parent", "--new-session"]


def _system_arguments(path: str) -> list[str]:
    if os.path.islink(path):  # /bin is usr/bin nowadays
        return ["--symlink", os.readlink(path), path]
    return _bind_arguments("--ro-bind", Path(path)) if os.path.isdir(path) else []


def _etc_paths() -> list[Path]:
    """Return the existing paths, links followed: their targets may not be visible."""
    return [path for name in ETC.split() for path in sorted(Path("/etc").glob(name)) if path.exists()]


def _var_tmp_arguments(view: SandboxView) -> list[str]:
    """Return the arguments for /var/tmp: the other name of /tmp, unless a visible path lies there. Through a link that
    path would have two names, and files of a workspace would be reported under the wrong one.
    """
    paths = (view.root, view.spool, view.cwd_folder, *view.readable_paths, *view.shown_paths, *view.writable_paths)
    if any(path.is_relative_to(VAR_TMP) for path in paths):
        return _tmpfs_arguments(VAR_TMP, view.tmp)
    return ["--symlink", "../tmp", VAR_TMP]


def _tmpfs_arguments(path: str, size: int) -> list[str]:
    return ["--perms", "1777", *(["--size", str(size)] if size else []), "--tmpfs", path]


def _bind_arguments(how: str, path: Path) -> list[str]:
    """Bind the path, with its parent folders as empty ones."""
    above = [word for parent in reversed(path.parents[:-1]) for word in ("--perms", "0755", "--dir", str(parent))]
    return [*above, how, str(path), str(path)]


def _parents_of_hidden(hidden: Sequence[Path], root: Path) -> list[Path]:
    """Return the folders between the workspace and what is hidden in it. As mounts they can't be renamed. A command
    could otherwise move the hidden path from under its cover before the next start."""
    between = {parent for path in hidden for parent in path.parents if parent.is_relative_to(root) and parent != root}
    return sorted(between)


def _hide_arguments(path: Path) -> list[str]:
    return ["--tmpfs", str(path)] if path.is_dir() else ["--ro-bind", "/dev/null", str(path)]


def _read(path: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError:
        return b""
