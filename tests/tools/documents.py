"""Documents of every kind that workers read, by job."""

import io
from collections.abc import Callable, Iterator

import msgspec
from PIL import Image as pillow
from pypdf import PdfReader, PdfWriter

from tests.tools.builtin.test_docs import GUIDE
from tests.tools.engines import answers as shapes
from tests.tools.reading.browser.test_browser import pdf
from toolgate.tools.reading.encodings.labels import LABELS
from toolgate.tools.reading.search.html_engine import BuildRequestJob, JobBatch, ReadResultsJob
from toolgate.tools.reading.web import convert
from toolgate.tools.reading.web.media_types import PDF
from toolgate.tools.reading.workers import pictures

URL = "http://site/"
BODIES = ("", "x", GUIDE, "<p>Tr\u00e8s court.", "<div>" * 300, "<article>" + "<p>A sentence of many words. " * 300)
FORMATS = ("PNG", "JPEG", "GIF", "WEBP", "BMP", "DIB", "TIFF", "MPO")
MODES = ("1", "L", "LA", "P", "PA", "RGB", "RGBA", "CMYK", "YCbCr", "LAB", "HSV", "I", "F", "I;16")


def html() -> Iterator[convert.RawPage]:
    for form in ("markdown", "text", "html"):
        for body in (*BODIES, "<meta charset=windows-1251><p>x"):
            yield convert.RawPage(body.encode(), "text/html; charset=utf-8", URL, form)


def texts() -> Iterator[convert.RawPage]:
    for name in LABELS:
        yield convert.RawPage(bytes(range(256)) * 2, f"text/plain; charset={name}", URL, "text")
    yield convert.RawPage(b"<title>a &amp; b</title>", "text/html", URL, "html")
    yield convert.RawPage(b"\xff\xfea\0", "text/plain", URL, "text")


def pdfs() -> Iterator[convert.RawPage]:
    lines = pdf(["The first page", "The second page"])
    for algorithm in ("", "RC4-40", "RC4-128", "AES-128", "AES-256", "AES-256-R5"):
        writer = PdfWriter(PdfReader(io.BytesIO(lines)))
        writer.add_metadata({"/Title": "L\u00e9 titre"})
        writer.add_blank_page(100, 100)
        for page in writer.pages:
            page.compress_content_streams()
        if algorithm:
            writer.encrypt("", algorithm=algorithm)
        body = io.BytesIO()
        writer.write(body)
        yield convert.RawPage(body.getvalue(), PDF, URL, "text")
    for broken in (
        lines[:300],
        b"%PDF-1.7 ...",
        lines.replace(b"xref", b"xxxx"),
        lines.replace(b"Helvetica", b"Times"),
    ):
        yield convert.RawPage(broken, PDF, URL, "text")


def images() -> Iterator[pictures.RawPicture]:
    exif = pillow.Exif()
    exif[pictures.ORIENTATION] = 6
    for kind in FORMATS:
        for mode in MODES:
            body = io.BytesIO()
            try:
                picture = pillow.new(mode, (300, 200))
                picture.save(
                    body, kind, exif=b"Exif\0\0MM\0*\0\0\0\x08\0\x01\x01\x12\0\x03\0\0\0\x01\0\x06\0\0\0\0\0\0"
                )
            except (OSError, ValueError, KeyError):  # the format has no such mode
                continue
            for size, edge in ((750_000, 2_000), (750_000, 100), (900, 2_000)):
                yield pictures.RawPicture("/x", size, edge, body.getvalue())
            yield pictures.RawPicture("/x", 750_000, 100, body.getvalue()[:-40])


def answers() -> Iterator[JobBatch]:
    for name in ("brave", "duckduckgo", "mojeek", "startpage", "yahoo"):
        for answer in (shapes.with_results(name), shapes.without(name), shapes.refusing(name), b""):
            body = answer if isinstance(answer, bytes) else answer[2]  # type: ignore[index]
            yield JobBatch(
                [
                    BuildRequestJob(name, "lamps", {}),
                    BuildRequestJob(name, "lamps", {URL: body}),
                    ReadResultsJob(name, "lamps", body),
                ]
            )


DOCUMENTS: dict[str, Callable[[], Iterator[msgspec.Struct]]] = {
    "page": html,
    "text": texts,
    "pdf": pdfs,
    "picture": images,
    "search": answers,
}
