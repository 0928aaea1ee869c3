"""Read pages by Toolgate and by its peers: bytes in, text and processor time out.

Toolgate is measured where its worker is: at the conversion of a page that was fetched without a browser.
"""

import json
import logging
import subprocess
import time
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

import trafilatura

from tests.bench.gold.sets import parse
from tests.bench.gold.text import element_text, markdown_text
from tests.bench.session.sides import PEERS, ROOT
from toolgate.tools.reading.encodings.body import decode_body
from toolgate.tools.reading.web import convert

OURS, TRAFILATURA, READABILITY = "Toolgate", "trafilatura", "readability-lxml"
ADDRESS = "http://example.com/page.html"
WHOLE = 2**30  # bytes: no answer is cut


@dataclass(frozen=True)
class Answer:
    """What a reader returns, its text without markup, and the seconds of processor time."""

    raw: str
    text: str
    seconds: float


Reader = Callable[[bytes], Answer]


@contextmanager
def open_readers() -> Generator[Mapping[str, Reader], None, None]:
    """Yield each reader by name; readability-lxml runs in its own environment, and is left out where that is not."""
    logging.getLogger("trafilatura").disabled = True
    convert.prepare()
    python = ROOT / ".venv" / "peers" / "readability" / "bin" / "python"
    readers: dict[str, Reader] = {OURS: read_by_toolgate, TRAFILATURA: read_by_trafilatura}
    if not python.exists():
        yield readers
        return
    command = [str(python), str(PEERS / "readability_page.py")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        yield readers | {READABILITY: lambda body: _read_by_readability(process, body)}
        assert process.stdin is not None
        process.stdin.close()


def read_by_toolgate(body: bytes) -> Answer:
    start = time.process_time()
    page = convert.read(convert.RawPage(body, "text/html", ADDRESS, "markdown", max_whole=WHOLE))
    seconds = time.process_time() - start
    return Answer(page.text or "", markdown_text(page.text or ""), seconds)


def read_by_trafilatura(body: bytes) -> Answer:
    start = time.process_time()
    text = trafilatura.extract(body, include_comments=False) or ""
    return Answer(text, text, time.process_time() - start)


def _read_by_readability(process: "subprocess.Popen[str]", body: bytes) -> Answer:
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(json.dumps(decode_body(body, "text/html", is_html=True).text) + "\n")
    process.stdin.flush()
    content, seconds = json.loads(process.stdout.readline())
    text = element_text(parse(content.encode())) if content.strip() else ""
    return Answer(text, text, seconds)
