"""Follow a page: run its commands in order, in a new folder, and compare their output.

A command that ends in `&` is a server: it gets a free port, and what is said of its address later on goes there; or
a node. What stands in the block of text below a block of commands must be what they print; `…` stands for anything."""

import contextlib
import functools
import http.server
import os
import re
import shlex
import string
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

from tests.clients.raw_client import COMMAND, PATIENCE, ROOT, eventually
from tests.docs.pages import Block
from tests.servers import forked_command

Done = subprocess.CompletedProcess[str]
EXITS = re.compile(r"#.*\bexits? (?:code |with )?(\d)\b")
PIPED = re.compile(r"echo '([^']*)' \| (.+)")


class Reader:
    """Follows one page. `said` maps each command to its output."""

    def __init__(self, folder: Path, running: contextlib.ExitStack) -> None:
        self.folder = folder
        self.said: list[tuple[str, Done]] = []
        self._running = running
        self._log = folder / "server.log"  # of the server that began last
        self._moved: dict[str, str] = {}  # address in the page → its real address
        bin = folder / ".venv" / "bin"
        bin.mkdir(parents=True)
        (bin / "toolgate").symlink_to(COMMAND)
        (folder / "deploy").symlink_to(ROOT / "deploy")
        self._environment = {"PATH": f"{Path(COMMAND).parent}:{os.environ['PATH']}", "HOME": str(folder)}

    def take(self, block: Block) -> None:
        """Save or run a block, or compare it with the previous output."""
        if block.file is not None:
            file = self.folder / block.file
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(block.text)
        elif block.language == "sh" and block.excuse is None:
            self._run(block)
        elif block.language == "text" and _was_run(block.follows):
            self._compare(block)

    def _run(self, block: Block) -> None:
        self.said = []
        for line in block.text.replace("\\\n", " ").splitlines():
            expected = EXITS.search(line)
            command = re.sub(r"(^|\s)#\s.*$", "", line).strip()
            if command.startswith("make "):
                targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.M))
                assert set(command.split()[1:]) <= targets, f"{block}: {line}"  # this test is part of one of them
            elif command.endswith("&"):
                self._serve(shlex.split(string.Template(command.removesuffix("&")).safe_substitute(self._environment)))
            elif command:
                done = self._ran(self._here(command))
                assert done.returncode == (int(expected[1]) if expected else 0), (str(block), line, done)
                self.said.append((command, done))

    def _here(self, command: str) -> str:
        for told, here in self._moved.items():
            command = command.replace(told, here)
        return command

    def _ran(self, command: str) -> Done:
        """Run it as a shell would; faster for a single command of ours."""
        given = ""
        piped = PIPED.fullmatch(command)
        if piped is not None:
            given, command = f"{piped[1]}\n", piped[2]
        words = list(shlex.shlex(command, posix=True, punctuation_chars=True)) if "$" not in command else ["|"]
        if Path(words[0]).name == "toolgate" and not any(set(word) <= set("();<>|&") for word in words if word):
            return forked_command.run(
                [COMMAND, *shlex.split(command)[1:]], given, cwd=self.folder, env=self._environment
            )
        return subprocess.run(
            ["bash", "-c", command],
            cwd=self.folder,
            env=self._environment,
            input=given,
            capture_output=True,
            text=True,
            timeout=60,
        )

    def _serve(self, words: list[str]) -> None:
        if words[:3] == ["python3", "-m", "http.server"]:
            self._moved[f"http://127.0.0.1:{words[3]}"] = self._running.enter_context(files(self.folder))
            return
        if words[:2] == ["toolgate", "node"]:
            self._running.enter_context(self._begun(words[1:], "listening on"))
            return
        port = words[words.index("--port") + 1] if "--port" in words else "8080"
        base = self._running.enter_context(self._served([*words[1:], "--port", "0"]))
        self._moved[f"http://127.0.0.1:{port}"] = base

    @contextlib.contextmanager
    def _served(self, words: list[str]) -> Iterator[str]:
        """Yield the base URL of a server that runs until the page ends."""
        with self._begun(words, "serving http"):
            found = re.search(r"http://127\.0\.0\.1:\d+", self._log.read_text())
            assert found, self._log.read_text()
            yield found[0]

    @contextlib.contextmanager
    def _begun(self, words: list[str], ready: str) -> Iterator[None]:
        """Run a command of ours from when its log has `ready` until the page ends."""
        self._log = log = self.folder / f"server-{len(list(self.folder.glob('server-*.log')))}.log"
        with log.open("wb") as file:
            process = forked_command.start(
                [COMMAND, *words],
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
                cwd=self.folder,
                env=self._environment,
            )
        try:
            assert eventually(lambda: ready in log.read_text() or process.poll() is not None)
            assert process.poll() is None, log.read_text()
            yield
            process.terminate()
            assert process.wait(PATIENCE) == 0, log.read_text()
        finally:
            if process.poll() is None:
                process.kill()
            process.wait(PATIENCE)

    def _compare(self, block: Block) -> None:
        expected = ".*?".join(re.escape(part) for part in self._here(block.text).strip().split("…"))
        if self.said:
            printed = "".join(done.stdout + done.stderr for _, done in self.said)
            assert re.fullmatch(expected, printed.strip(), re.S), f"{block}: what is printed is\n{printed}"
        else:  # a server, which goes on
            assert eventually(lambda: bool(re.search(expected, self._log.read_text(), re.S))), self._log.read_text()


def _was_run(block: Block | None) -> bool:
    return block is not None and block.language == "sh" and block.excuse is None


@contextlib.contextmanager
def files(folder: Path) -> Iterator[str]:
    """Serve like `python3 -m http.server`, in a thread."""

    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, format: str, *args: object) -> None:
            pass

    handle = functools.partial(Quiet, directory=str(folder))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handle) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join(PATIENCE)
