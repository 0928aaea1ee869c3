"""Set up the target of attempts: a server with two principals, one of them hostile, and forbidden resources around it.
Every secret is one word, the token."""

import contextlib
import json
import os
import platform
import shutil
import socket
import socketserver
import subprocess
import sys
import tempfile
import threading
import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from PIL import Image

from tests.clients.raw_client import PATIENCE, STATELESS, eventually
from tests.escape import tricks
from tests.escape.attempt import Attempt
from tests.server.auth.minted_tokens import ENVELOPE, Signed, asked, request, signed_site
from tests.servers.forked_command import ROOT
from tests.servers.reserved_port import kept_port
from tests.servers.reserved_users import kept_users
from toolgate.server.auth.tokens.access_tokens import OWN_ISSUER
from toolgate.server.base.principals.principal import Principal

if TYPE_CHECKING:
    from tests.server.features.nodes.nodes import NodeProcess

SYSTEM_PYTHON = "/usr/bin/python3"
BATCH = 300_000  # milliseconds for all attempts of one command: on a busy machine 40 s were too short
HOLD = ("--hold", f"{BATCH / 1000:g}")  # else a command becomes a background task before
NOBODY = kept_users(1)[0]  # used by no other process: others would count
LIMITS = {
    "memory": "384M",
    "processes": "200",
    "files": "256",
    "file-size": "32M",
    "workspace": "96M",
    "entries": "1000",
    "tmp": "16M",
    "cpu": "2",
    "commands": "24",
    "background": "16",
}
CALLS = {"calls": "0", "calls:tools:shell": "0"}
NO_GROUPS = 'umount -l /sys/fs/cgroup/* /sys/fs/cgroup 2>/dev/null; exec "$@"'
SECRETS = ("TOOLGATE_BRAVE_API_KEY", "AWS_SECRET_ACCESS_KEY")
SERVES = """
import ctypes, os, socket, sys, threading, time
word, name, key, port = sys.argv[2:6]
libc = ctypes.CDLL(None, use_errno=True)
open("secret", "w").write(word)
for folder in ("/tmp", "/var/tmp", "/dev/shm"):
    with open(f"{folder}/{name}", "w") as file:
        file.write(word)
libc.shmat.restype = ctypes.c_void_p
shared = libc.shmat(libc.shmget(int(key), 4096, 0o1666), None, 0)
ctypes.memmove(shared, word.encode() + bytes(1), len(word) + 1)
message = ctypes.create_string_buffer(bytes([1, 0, 0, 0, 0, 0, 0, 0]) + word.encode())
libc.msgsnd(libc.msgget(int(key), 0o1666), message, len(word), 0)
mq = libc.syscall(NUMBER, name.encode(), os.O_RDWR | os.O_CREAT, 0o666, None)
libc.syscall(NUMBER + 2, mq, word.encode(), len(word), 0, None)
def serve(family, where):
    try:
        with socket.socket(family) as listener:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # the port is kept for it
            listener.bind(where)
            listener.listen()
            while True:
                taken, _ = listener.accept()
                taken.sendall(word.encode())
                taken.settimeout(1)
                taken.recv(100)
                taken.close()
    except OSError as error:
        print(error)
threading.Thread(target=serve, args=(socket.AF_UNIX, chr(0) + name), daemon=True).start()
threading.Thread(target=serve, args=(socket.AF_INET, ("127.0.0.1", int(port))), daemon=True).start()
open("serving", "w").write("yes")
print("victim-says", word, flush=True)
time.sleep(600)
"""


class Ground:
    """A server and its surroundings. `level` is its sandbox level, `user` its user (None: the tests' own), `folder`
    holds all of it. `node` runs the commands, or None where the server does."""

    def __init__(
        self,
        folder: Path,
        level: str,
        user: int | None,
        signed: Signed,
        around: dict[str, str],
        node: "NodeProcess | None",
    ) -> None:
        self.level = level
        self.user = user
        self.folder = folder
        self.outside = folder / "outside"
        self.token = around["ESCAPED"]
        self.signed = signed
        self.server = signed.site.process if node is None else node.process
        self._tokens = {who: signed.token(who, "one") for who in ("mallory", "victim")}
        self.around = around
        self._verdicts: dict[str, str] | None = None

    def workspace(self, who: str) -> Path:
        return self.signed.site.state / "workspaces" / self._name(who)

    def spool(self, who: str) -> Path:
        return self.signed.site.state / "spool" / self._name(who)

    def _name(self, who: str) -> str:
        return Principal(OWN_ISSUER, who, "one").name

    # -- as a principal

    def call(self, tool: str, who: str = "mallory", **arguments: Any) -> dict[str, Any]:
        params = {"name": tool, "arguments": arguments}
        result: dict[str, Any] = self._answer("tools/call", params, who)["result"]
        return result

    def bash(self, command: str, who: str = "mallory", **arguments: Any) -> dict[str, Any]:
        """Run a command in the workspace, wherever the last one has gone."""
        return self.call("Bash", who, command=f"cd '{self.workspace(who)}'\n{command}", **arguments)

    def ask(self, method: str, **params: Any) -> Any:
        return self._answer(method, params, "mallory")

    def _answer(self, method: str, params: dict[str, Any], who: str) -> Any:
        response, content, said = asked(self.signed, self._tokens[who], method, params)
        assert said is not None, (response.status, content[:500])
        return said

    def read(self, uri: str) -> Any:
        return self.ask("resources/read", uri=uri)

    def words(self, result: dict[str, Any]) -> str:
        return "\n".join(block["text"] for block in result["content"] if block["type"] == "text")

    def said(self, command: str, who: str = "mallory") -> str:
        return self.words(self.bash(command, who))

    @contextlib.contextmanager
    def hanging(self, command: str) -> Iterator[None]:
        """Start a call and disconnect, which cancels it."""
        params = {"name": "Bash", "arguments": {"command": command}, "_meta": {**ENVELOPE, "progressToken": "p"}}
        told = {"mcp_protocol_version": STATELESS, "mcp_method": "tools/call", "mcp_name": "Bash"}
        body = request("tools/call", params)
        with self.signed.site.socket() as connection:
            data = json.dumps(body).encode()
            head = {
                "Host": f"127.0.0.1:{self.signed.site.port}",
                "Authorization": f"Bearer {self._tokens['mallory']}",
                "Content-Type": "application/json",
                "Accept": "application/json, text/event-stream",
                "Content-Length": str(len(data)),
                **{name.replace("_", "-"): value for name, value in told.items()},
            }
            lines = "".join(f"{name}: {value}\r\n" for name, value in head.items())
            connection.sendall(f"POST /mcp HTTP/1.1\r\n{lines}\r\n".encode() + data)
            yield

    def script(self, script: str, who: str = "mallory", bash: bool = False) -> str:
        """Return the output of one script."""
        return self.run_scripts([("it", script, bash)], who)["it"]

    def list_tools(self) -> set[str]:
        return {tool["name"] for tool in self.ask("tools/list")["result"]["tools"]}

    def run_scripts(self, scripts: Sequence[tuple[str, str, bool]], who: str, tool: str = "Bash") -> dict[str, str]:
        """Return the output of each script; one command of the tool runs all of them."""
        workspace = self.workspace(who)
        verdicts = workspace / f"verdicts-{uuid.uuid4().hex}"
        around = {
            **self.around,
            "ME": str(workspace),
            "SPOOL": str(self.spool(who)),
            "VERDICTS": str(verdicts),
        }
        exports = "\n".join(f"export {name}='{value}'" for name, value in around.items())
        descriptors = 'for fd in /proc/$$/fd/*; do readlink "$fd"; done > descriptors'
        program = (ROOT / "tests" / "escape" / "tricks.py").read_text()
        command = (
            f"cd '{workspace}'\n{descriptors}\n{exports}\n"
            f"cat > .tricks.py <<'END-OF-TRICKS'\n{program}\nEND-OF-TRICKS\n"
            f"exec {SYSTEM_PYTHON} -I .tricks.py <<'END-OF-SCRIPTS'\n{json.dumps(scripts)}\nEND-OF-SCRIPTS\n"
        )
        result = self.call(tool, who, command=command, **({"timeout": BATCH} if tool == "Bash" else {}))
        if not verdicts.exists():
            return {name: f"{self.words(result)} (no verdict)" for name, _, _ in scripts}
        found: dict[str, str] = json.loads(verdicts.read_text())
        verdicts.unlink()
        return found

    def end_tasks(self) -> None:
        for task in self.call("ListBgTasks")["structuredContent"]["tasks"]:
            if task["status"] == "running":
                self.call("KillBgTask", task_id=task["task_id"])

    # -- attempts

    def evidence(self, attempt: Attempt, others: Sequence[Attempt]) -> str:
        """Return what it got or printed. `others` run with it, if they disturb nothing."""
        if attempt.act is not None:
            return attempt.act(self)
        if attempt.alone:
            return self.script(attempt.script, bash=attempt.bash)
        if self._verdicts is None:
            self._verdicts = self.run_scripts([(each.name, each.script, each.bash) for each in others], "mallory")
        return self._verdicts[attempt.name]

    def clear(self, *names: str) -> None:
        """Remove entries of the hostile workspace."""
        for name in names:
            path = self.workspace("mallory") / name
            shutil.rmtree(path, ignore_errors=True) if path.is_dir() else path.unlink(missing_ok=True)
        self.bash("true")  # measures again what is too much

    def zombies(self) -> int:
        """Return the number of zombies in the server's trees."""
        parents: dict[int, list[tuple[int, str]]] = {}
        for entry in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError, IndexError):
                state, parent, *_ = (entry / "stat").read_text().rpartition(")")[2].split()
                parents.setdefault(int(parent), []).append((int(entry.name), state))
        count, waiting = 0, [self.server.pid]
        while waiting:
            for pid, state in parents.get(waiting.pop(), []):
                count += state == "Z"
                waiting.append(pid)
        return count


@contextlib.contextmanager
def ground(
    level: str,
    *,
    user: int | None = None,
    grouped: bool = True,
    at_node: bool = False,
    options: Sequence[str] = (),
) -> Iterator[Ground]:
    """Yield a ground with a server as `user`, if given; `grouped`: with control groups in their usual place;
    `at_node`: with a node, on the same state folder, that runs the commands; `options`: more of the server's."""
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="toolgate-escape-", dir="/tmp")))
        folder.chmod(0o755)
        token = f"escape-{uuid.uuid4().hex}"
        around = {"ESCAPED": token, "NAME": f"toolgate-{uuid.uuid4().hex}", "KEY": str(uuid.uuid4().int % 2**30)}
        around |= _outside(folder / "outside", token)
        around |= stack.enter_context(_listeners(folder / "outside", token))
        calls, limits = (
            [word for name, value in rows.items() for word in ("--limit", f"{name}={value}")]
            for rows in (CALLS, LIMITS)
        )
        shown = ["--sandbox-paths", str(folder / "outside" / "shown")] if level == "bwrap" else []
        own = [*limits, *shown, "--sandbox", level, *options]
        if level == "none":
            own = ["--sandbox", level, *options]
        command = (sys.executable, "-m", "toolgate.server") if user is None else run_as(user, folder)
        if not grouped:
            command = ("unshare", "--mount", "--propagation", "private", "sh", "-c", NO_GROUPS, "sh", *command)
        env, node = dict.fromkeys(SECRETS, "planted"), None
        if at_node:
            from tests.server.features.nodes.nodes import running_node  # the other grounds do without nodes

            # by a program of its own: a fork has the environment of what it was forked from in /proc
            node = stack.enter_context(running_node(folder, *own, env=env, enter=("env",)))
            own = ["--node", str(node.address)]
        signed = stack.enter_context(_signed(folder, user, [*HOLD, *calls, *own], command, env))
        canary = subprocess.Popen(["sleep", "infinity"], stdin=subprocess.DEVNULL)
        stack.callback(canary.wait, PATIENCE)
        stack.callback(canary.kill)
        around |= {
            "STATE": str(signed.site.state),
            "SERVER": str((node or signed.site).process.pid),
            "PORT": str(signed.site.port),
            "CANARY": str(canary.pid),
            "HOST": socket.gethostname(),
            "PYTHON": os.path.realpath(os.__file__),
            "SUPERVISOR": str(ROOT / "tools" / "workspace" / "processes" / "supervisor.py"),
        }
        made = Ground(folder, level, user, signed, around, node)
        if user is not None:
            give_files(signed.site.state, user)
        stack.callback(_sweep, around)
        around |= _victim(made, around)
        made.bash("true")
        yield made
        assert canary.poll() is None, "a process outside was ended"


@contextlib.contextmanager
def _unix(path: Path) -> Iterator[None]:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()
        yield


@contextlib.contextmanager
def _signed(
    folder: Path, user: int | None, options: Sequence[str], command: Sequence[str], env: Any
) -> Iterator[Signed]:
    if user is not None:
        for name in ("state", "home", "work"):
            (folder / name).mkdir()
            os.chown(folder / name, user, user)
    with contextlib.ExitStack() as stack:
        signed = stack.enter_context(signed_site(folder, *options, workspace=False, command=command, env=env))
        stack.enter_context(_unix(signed.site.state / "agent.sock"))
        yield signed


def run_as(user: int, folder: Path) -> Sequence[str]:
    """Return the command as another user. The program and interpreter may lie in a folder that only root can enter, so
    a private mount namespace has another folder in its place."""
    seen = [Path(path).resolve() for path in (sys.base_prefix, sys.prefix, ROOT)]
    tops = {path: closed for path in seen if (closed := _closed(path)) is not None}
    words = []
    for number, path in enumerate(seen):
        held = folder / f"seen-{number}"
        held.mkdir()
        words.append(f"mount --bind {path} {held}")
    words += [f"mount -t tmpfs -o mode=0755 none {top}" for top in sorted(set(tops.values()))]
    for number, path in enumerate(seen):
        if path in tops:
            words.append(f"mkdir -p {path} && mount --bind {folder}/seen-{number} {path}")
    become = f"exec setpriv --reuid {user} --regid {user} --clear-groups --inh-caps=-all --bounding-set=-all"
    words.append(f'{become} {sys.executable} -m toolgate.server "$@"')
    return ("unshare", "--mount", "--propagation", "private", "sh", "-c", " && ".join(words), "sh")


def give_files(state: Path, user: int) -> None:
    """Give the user the files that this process made there while it minted tokens."""
    for path in (state, *state.rglob("*")):
        os.chown(path, user, user, follow_symlinks=False)


def _closed(path: Path) -> Path | None:
    """Return the first folder on the path that others may not enter."""
    return next((each for each in reversed((path, *path.parents)) if not each.stat().st_mode & 0o001), None)


def _outside(folder: Path, token: str) -> dict[str, str]:
    """Write the secret files."""
    (folder / "shown").mkdir(parents=True)
    for name, mode in (("secret", 0o600), ("open", 0o644), ("place", 0o644)):
        (folder / name).write_text(f"/{token}" if name == "place" else token)
        (folder / name).chmod(mode)
    for name, size in (("picture", (7, 3)), ("private", (7, 3)), ("fine", (5, 5))):
        Image.new("RGB", size).save(folder / f"{name}.png")
    (folder / "private.png").chmod(0o600)
    shutil.copy("/usr/bin/id", folder / "shown" / "id")
    (folder / "shown" / "id").chmod(0o4755)
    return {"SECRET": str(folder / "secret"), "OPEN": str(folder / "open"), "SHOWN": str(folder / "shown")}


@contextlib.contextmanager
def _listeners(folder: Path, token: str) -> Iterator[dict[str, str]]:
    """Start a database, a bus and some sockets, each of which sends the token to any client."""

    class Says(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            if isinstance(self.request, tuple):
                self.request[1].sendto(token.encode(), self.client_address)
            else:
                self.request.sendall(token.encode())
                self.request.settimeout(1)
                with contextlib.suppress(OSError):
                    self.request.recv(4096)

    class Unix(socketserver.ThreadingUnixStreamServer):
        pass

    class Over6(socketserver.ThreadingTCPServer):
        address_family = socket.AF_INET6

    name = f"toolgate-outside-{uuid.uuid4().hex}"
    address = _own_address()
    servers: dict[str, socketserver.BaseServer] = {
        "DATABASE": socketserver.ThreadingTCPServer(("127.0.0.1", 0), Says),
        "ANYWHERE": socketserver.ThreadingTCPServer(("0.0.0.0", 0), Says),
        "BUS": socketserver.ThreadingUDPServer(("127.0.0.1", 0), Says),
        "SOCKET": Unix(str(folder / "open.sock"), Says),
        "DOCKER": Unix(str(folder / "docker.sock"), Says),
        "ABSTRACT": Unix(f"\0{name}", Says),
    }
    with contextlib.suppress(OSError):
        servers["DATABASE6"] = Over6(("::1", 0), Says)
    (folder / "open.sock").chmod(0o777)
    (folder / "docker.sock").chmod(0o600)
    for server in servers.values():
        threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    ports = {
        each: str(server.server_address[1])
        for each, server in servers.items()
        if each in ("DATABASE", "ANYWHERE", "BUS", "DATABASE6")
    }
    try:
        yield {
            "DATABASE6": "1",
            **ports,
            "SOCKET": str(folder / "open.sock"),
            "DOCKER": str(folder / "docker.sock"),
            "ABSTRACT": name,
            "ADDRESS": address,
        }
    finally:
        for server in servers.values():
            server.shutdown()
            server.server_close()


def _own_address() -> str:
    """Return the machine's outgoing address, or loopback if it has none. Nothing is sent."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))
            return str(probe.getsockname()[0])
        except OSError:
            return "127.0.0.1"


def _victim(made: Ground, around: dict[str, str]) -> dict[str, str]:
    """Start the second principal's work."""
    port = str(kept_port())
    serves = SERVES.replace("NUMBER", str(tricks.NUMBERS["mq_open"][0 if platform.machine() == "x86_64" else 1]))
    words = f"secret-word {around['ESCAPED']} {around['NAME']} {around['KEY']} {port}"
    made.bash(f"cat > .serves.py <<'END'\n{serves}\nEND", who="victim")
    begun = made.call("BackgroundBash", who="victim", command=f"MINE=1 exec {SYSTEM_PYTHON} -I .serves.py {words}")
    task = begun["structuredContent"]["task_id"]
    assert eventually(lambda: (made.workspace("victim") / "serving").exists()), made.call(
        "ReadBgOutput", who="victim", task_id=task
    )
    (pid,) = (
        path.parent.name
        for path in Path("/proc").glob("[0-9]*/cmdline")
        if b".serves.py" in _bytes(path) and around["NAME"].encode() in _bytes(path) and b"bash" not in _bytes(path)
    )
    return {
        "VICTIM": str(made.workspace("victim")),
        "VICTIM_PID": pid,
        "VICTIM_PORT": port,
        "VICTIM_OUTPUT": str(made.spool("victim") / str(task) / "output"),
    }


def _bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""


def _sweep(around: dict[str, str]) -> None:
    """Remove files from world-writable folders."""
    for folder in ("/tmp", "/var/tmp", "/dev/shm"):
        Path(folder, around["NAME"]).unlink(missing_ok=True)
    unlink = tricks.NUMBERS["mq_unlink"][0 if platform.machine() == "x86_64" else 1]
    tricks.libc.syscall(unlink, around["NAME"].encode())
    key = int(around["KEY"])
    for found, remove in (
        (tricks.libc.shmget(key, 0, 0), tricks.libc.shmctl),
        (tricks.libc.msgget(key, 0), tricks.libc.msgctl),
    ):
        if found >= 0:
            remove(found, 0, None)
