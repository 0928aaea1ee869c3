"""Tell the media type of a body, and whether it is text: servers often declare another type."""

import codecs
import re

from toolgate.tools.reading.encodings.body import is_wide

HTML_TYPES = frozenset({"text/html", "application/xhtml+xml"})
TEXT_TYPES = re.compile(
    r"text/.+|.+\+(json|xml|yaml)"
    r"|application/(json|xml|javascript|ecmascript|x-javascript|yaml|x-yaml|toml|sql|graphql|x-ndjson|x-sh)"
)
VAGUE_TYPES = frozenset({"", "application/octet-stream", "binary/octet-stream", "application/unknown"})
# Types of programs and data are text if their bytes are: x-python, x-tex, postscript, and TypeScript as an MPEG stream
DATA_TYPES = re.compile(
    r"(?:application|message|model|chemical|x-[\w-]+)/.+|video/(?:mp2t|vnd\.dlna\.mpeg-tts)|audio/.*mpegurl"
)
PDF = "application/pdf"
ZIP, GZIP = "application/zip", "application/gzip"
MAGIC = {
    b"%PDF-": PDF,
    b"\x89PNG": "image/png",
    b"\xff\xd8\xff": "image/jpeg",
    b"GIF8": "image/gif",
    b"PK\x03\x04": ZIP,
    b"\x1f\x8b": GZIP,
}
OFFICE = "application/vnd.openxmlformats-officedocument."
# Formats that are archives, by a file that each holds at its beginning
ARCHIVES = {
    b"word/": f"{OFFICE}wordprocessingml.document",
    b"xl/": f"{OFFICE}spreadsheetml.sheet",
    b"ppt/": f"{OFFICE}presentationml.presentation",
    b"META-INF/": "application/java-archive",
}
STATED = re.compile(rb"mimetype(application/[\w.+-]{1,100}?)PK")  # EPUB and OpenDocument begin with their type
HTML_START = re.compile(rb"(?:\xef\xbb\xbf|\xff\xfe|\xfe\xff)?\s*<(?:!doctype html|html)", re.IGNORECASE)
WITHIN = 4_096  # bytes at the beginning of a body
PDF_START = re.compile(rb"[\r\n]%PDF-\d")
PDF_WITHIN = 1_024  # bytes before which the header of a PDF begins in practice
CONTROL = re.compile(rb"[\x00-\x08\x0e-\x1a\x1c-\x1f\x7f]")  # what no text holds; escape colours terminals


def is_text_type(kind: str) -> bool:
    return kind in HTML_TYPES or TEXT_TYPES.fullmatch(kind) is not None


def find_media_type(content_type: str, body: bytes) -> str:
    """Return the type of a body with this header: the declared one, unless it is vague or the bytes clearly differ."""
    declared = content_type.partition(";")[0].strip().lower()
    for magic, kind in MAGIC.items():
        if body.startswith(magic):
            return _name_archive(declared, kind, body) if kind in (ZIP, GZIP) else kind
    if is_text_type(declared) or not (declared in VAGUE_TYPES or DATA_TYPES.fullmatch(declared)):
        return declared
    start = body[:WITHIN]
    if (declared in VAGUE_TYPES or declared == PDF) and PDF_START.search(start, 0, PDF_WITHIN):
        return PDF
    is_text = b"\0" not in start or is_wide(start)
    if declared not in VAGUE_TYPES:
        is_text = is_text and _is_text(start)
    if not is_text:
        return declared if declared not in VAGUE_TYPES else "application/octet-stream"
    return "text/html" if HTML_START.match(start.replace(b"\0", b"")) else "text/plain"


def _is_text(start: bytes) -> bool:
    """Return whether bytes of another type are text in UTF-8."""
    if CONTROL.search(start):
        return False
    try:
        codecs.getincrementaldecoder("utf-8")().decode(start)
    except UnicodeDecodeError:
        return False
    return bool(start.strip())


def _name_archive(declared: str, kind: str, body: bytes) -> str:
    """Return the type of an archive: the declared one if it names a format, else what its first files tell."""
    names_format = declared.startswith("application/") and declared not in VAGUE_TYPES and not is_text_type(declared)
    if names_format and declared not in (ZIP, GZIP, "application/x-zip-compressed", "application/x-gzip"):
        return declared
    if kind == GZIP:
        return kind
    if stated := STATED.search(body[:WITHIN]):
        return stated[1].decode("ascii")
    return next((name for mark, name in ARCHIVES.items() if mark in body[:WITHIN]), kind)
