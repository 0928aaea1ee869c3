"""The program on a real terminal, drawn as SVG: `python -m tests.server.cli.terminal_pictures` writes docs/pictures."""

import contextlib
import fcntl
import os
import pty
import re
import select
import shlex
import signal
import struct
import subprocess
import tempfile
import termios
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple
from xml.sax.saxutils import escape

from tests.clients.raw_client import COMMAND, PATIENCE, ROOT
from tests.servers.reserved_port import kept_port

FOLDER = ROOT / "docs" / "pictures"
COLUMNS, ROWS = 96, 40
CELL, LINE, MARGIN = 8.4, 20, 22  # pixels: a column, a line, and the space around
PROMPT = "\033[1;32mada@laptop\033[0m $ "
COLOURS = {"32": "#7bd88f", "33": "#e5c76b", "31": "#f58e8e", "36": "#6cd0e0"}
BACKGROUND, TEXT, FAINT = "#151b23", "#dbe2ea", "#93a1b0"
SGR = re.compile(r"\033\[([0-9;]*)m")
OTHER_ESCAPES = re.compile(r"\033\[[0-9;?]*[A-Za-ln-z]")
PIECE = re.compile(r"\S+(?: \S+)*")  # words with one blank between: SVG would join more
CODE = re.compile(r"#code=\S+")
OF_ROOT = re.compile(r"a user for each principal,\s+")  # the pictures are ada's, whoever draws them


class Scene(NamedTuple):
    """Commands, and the words at whose sight Ctrl-C ends the last one, or "" for one that ends by itself."""

    title: str
    commands: tuple[str, ...]
    until: str = ""


SCENES = {
    "terminal": Scene(
        "Toolgate on a terminal: added to a client, called, and served with a link for the first account",
        (
            "toolgate install cursor",
            "toolgate call Bash command='for n in 1 2 3; do echo test $n passed; done'",
            "toolgate -t",
        ),
        "Ctrl-C ends the server.",
    ),
    "doctor": Scene("toolgate doctor: each check, and a verdict", ("toolgate doctor",)),
}


def play(scene: Scene) -> list[str]:
    """Run the commands on a terminal, and return its lines with their colours. The folder, the port and the link's code
    are replaced: they differ each time."""
    lines: list[str] = []
    with tempfile.TemporaryDirectory(prefix="toolgate-") as folder:
        Path(folder).chmod(0o755)  # the users of the sandbox pass through
        (home := Path(folder) / "ada").mkdir(mode=0o755)
        (home / ".cursor").mkdir()
        (home / ".cursor/argv.json").write_text("{}")  # Cursor has been used
        port = str(kept_port())
        for command in scene.commands:
            words = shlex.split(command)
            own = ["--port", port] if "-t" in words else []
            printed = _run(words[1:] + own, home, scene.until if command == scene.commands[-1] else "")
            printed = OF_ROOT.sub("this user, ", printed)
            printed = CODE.sub("#code=4F7K-9QXM-T2RD-W8HB-6NPC", printed.replace(f":{port}", ":8080"))
            lines += [
                PROMPT + command,
                *_to_lines(printed.replace(str(home), "/home/ada").replace(str(ROOT), "/home/ada/toolgate")),
                "",
            ]
    return lines[:-1]


def _run(words: list[str], home: Path, until: str) -> str:
    """Return what the program prints on a terminal."""
    environment = {"PATH": os.environ["PATH"], "HOME": str(home), "TERM": "xterm-256color", "LANG": "C.UTF-8"}
    outer, inner = pty.openpty()
    fcntl.ioctl(inner, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
    streams: dict[str, Any] = {"stdin": inner, "stdout": inner, "stderr": inner}
    seen, deadline = b"", time.monotonic() + PATIENCE
    with subprocess.Popen([COMMAND, *words], cwd=home, env=environment, start_new_session=True, **streams) as program:
        os.close(inner)
        with contextlib.suppress(OSError):  # EIO: the program has closed the terminal
            while not until or until.encode() not in seen:
                assert select.select([outer], [], [], max(0, deadline - time.monotonic()))[0], seen
                seen += os.read(outer, 65_536)
        if until:
            program.send_signal(signal.SIGINT)
        assert program.wait(PATIENCE) == 0, seen
    os.close(outer)
    return seen.decode()


def _to_lines(printed: str) -> Iterator[str]:
    """Yield the lines that stay on the screen: of one that was written again, its last state."""
    for line in printed.rstrip().split("\r\n"):
        yield OTHER_ESCAPES.sub("", line.rsplit("\r", 1)[-1])


def draw(lines: list[str], title: str) -> str:
    """Return the lines as SVG. Each run of text has its width, so that columns stand in every font."""
    height = len(lines) * LINE + 2 * MARGIN - 4
    width = round(COLUMNS * CELL + 2 * MARGIN)
    font = "ui-monospace, SFMono-Regular, Menlo, Consolas, 'DejaVu Sans Mono', monospace"
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img">',
        f"<title>{escape(title)}</title>",
        f'<rect width="{width}" height="{height}" rx="10" fill="{BACKGROUND}"/>',
        f'<g fill="{TEXT}" font-family="{font}" font-size="14">',
    ]
    style = ""
    for row, line in enumerate(lines):
        column = 0
        for index, part in enumerate(SGR.split(line)):
            if index % 2:
                style = _to_attributes(part)
                continue
            for word in PIECE.finditer(part):
                x, length = MARGIN + (column + word.start()) * CELL, len(word[0]) * CELL
                place = f'x="{x:g}" y="{MARGIN + 12 + row * LINE}" textLength="{length:g}"'
                parts.append(f"<text {place}{style}>{escape(word[0])}</text>")
            column += len(part)
    return "\n".join([*parts, "</g>", "</svg>", ""])


def _to_attributes(codes: str) -> str:
    found = codes.split(";")
    colour = next((COLOURS[code] for code in found if code in COLOURS), FAINT if "2" in found else "")
    return (f' fill="{colour}"' if colour else "") + (' font-weight="600"' if "1" in found else "")


def main() -> None:
    """Draw each scene into docs/pictures."""
    for name, scene in SCENES.items():
        (FOLDER / f"{name}.svg").write_text(draw(play(scene), scene.title))


if __name__ == "__main__":
    main()
