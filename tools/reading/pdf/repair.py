"""Rebuild a PDF whose catalog or pages can't be found: a file that was cut short, or lost its table of objects.

The objects that are whole are kept as they are, and those in object streams are unpacked. If the catalog is lost, a new
one lists the pages in their order in the file.
"""

import re
import zlib
from collections.abc import Iterator
from itertools import islice

MAX_OBJECTS = 200_000
MAX_UNPACKED = 64 * 2**20  # bytes of all object streams
OBJECT = re.compile(rb"(?<![0-9])([0-9]{1,7})[ \t\r\n]+([0-9]{1,5})[ \t\r\n]+obj\b")
PAGE = re.compile(rb"/Type\s*/Page(?![A-Za-z])")
PAGES = re.compile(rb"/Type\s*/Pages(?![A-Za-z])")
CATALOG = re.compile(rb"/Type\s*/Catalog(?![A-Za-z])")
OBJECT_STREAM = re.compile(rb"/Type\s*/ObjStm(?![A-Za-z])")
NUMBER = re.compile(rb"/(N|First)\s+(\d{1,7})(?!\s+\d+\s+R)")
STREAM = re.compile(rb"stream(?:\r\n|\n|\r)")
PAGES_OF = re.compile(rb"/Pages\s+(\d{1,7})\s+\d{1,5}\s+R")
HEAD = 4_096  # bytes of an object that show its type
TRAILER_KEYS = (
    re.compile(rb"/Encrypt\s+\d{1,7}\s+\d{1,5}\s+R"),
    re.compile(rb"/Info\s+\d{1,7}\s+\d{1,5}\s+R"),
    re.compile(rb"/ID\s*\[[^\]]{0,300}\]"),
)
PARENT = re.compile(rb"/Parent\s+\d{1,7}\s+\d{1,5}\s+R")


def repair(body: bytes) -> bytes:
    """Return a PDF of the objects that are found in the body. It may have no page."""
    start = max(0, body.find(b"%PDF-", 0, 1_024))
    objects = _find_objects(body[start:])
    if not objects:
        return body
    catalog = next((number for number, data in reversed(objects.items()) if CATALOG.search(data[:HEAD])), None)
    if catalog is None or not _has_pages(objects, catalog):
        catalog = _add_catalog(objects)
    return _write(objects, b"/Root %d 0 R" % catalog + b"".join(_find_trailer(body)))


def _find_trailer(body: bytes) -> Iterator[bytes]:
    """Yield the last key of each kind that a trailer has besides its root."""
    for key in TRAILER_KEYS:
        yield from [found[0] for found in key.finditer(body)][-1:]


def _find_objects(body: bytes) -> dict[int, bytes]:
    """Return the objects by number. The last of two with one number counts: it is an update."""
    found_objects = islice(OBJECT.finditer(body), MAX_OBJECTS)
    places = [(found.start(), found.end(), int(found[1])) for found in found_objects]
    objects: dict[int, bytes] = {}
    for index, (_, begin, number) in enumerate(places):
        limit = places[index + 1][0] if index + 1 < len(places) else len(body)
        end = body.rfind(b"endobj", begin, limit)
        data = body[begin : end if end >= 0 else limit]
        objects[number] = data if end >= 0 else _close(data)
    unpacked = 0
    for data in list(objects.values()):
        if OBJECT_STREAM.search(data[:HEAD]):
            for number, inner in _unpack(data, MAX_UNPACKED - unpacked):
                unpacked += len(inner)
                objects.setdefault(number, inner)
    return objects


def _close(data: bytes) -> bytes:
    """Return the last object of a file that was cut short, with its stream closed."""
    return data + b"\nendstream" if STREAM.search(data, 0, HEAD) else data


def _unpack(data: bytes, limit: int) -> Iterator[tuple[int, bytes]]:
    """Yield the objects in an object stream (ISO 32000-1, 7.5.7) with their numbers."""
    begin = STREAM.search(data)
    counts = {name: int(value) for name, value in NUMBER.findall(data[: begin.start() if begin else 0])}
    if begin is None or counts.keys() < {b"N", b"First"}:
        return
    try:
        plain = zlib.decompressobj().decompress(data[begin.end() :], max(0, limit))
    except zlib.error:
        return
    head = [int(word) for word in plain[: counts[b"First"]].split()[: 2 * counts[b"N"]] if word.isdigit()]
    places = list(zip(head[::2], head[1::2], strict=False))
    for index, (number, place) in enumerate(places):
        end = places[index + 1][1] if index + 1 < len(places) else len(plain) - counts[b"First"]
        inner = plain[counts[b"First"] + place : counts[b"First"] + end]
        if inner:
            yield number, inner


def _has_pages(objects: dict[int, bytes], catalog: int) -> bool:
    found = PAGES_OF.search(objects[catalog])
    return found is not None and int(found[1]) in objects


def _add_catalog(objects: dict[int, bytes]) -> int:
    """Add a catalog, and return its number. It has the old tree of pages, or a new one of all that are there."""
    roots = [number for number, data in objects.items() if PAGES.search(data[:HEAD]) and not PARENT.search(data[:HEAD])]
    number = max(objects) + 1
    objects[number] = b"<</Type/Catalog/Pages %d 0 R>>" % (roots[0] if len(roots) == 1 else number + 1)
    if len(roots) != 1:
        _add_tree(objects, number + 1)
    return number


def _add_tree(objects: dict[int, bytes], tree: int) -> None:
    pages = [number for number, data in objects.items() if PAGE.search(data[:HEAD])]
    for number in pages:
        data = objects[number]
        parent = PARENT.search(data[:HEAD])
        if parent is None or int(parent[0].split()[1]) not in objects:
            replaced = PARENT.sub(b"", data, count=1)
            objects[number] = replaced.replace(b"<<", b"<</Parent %d 0 R " % tree, 1)
    kids = b" ".join(b"%d 0 R" % number for number in pages)
    objects[tree] = b"<</Type/Pages/Count %d/Kids[%b]/MediaBox[0 0 612 792]>>" % (len(pages), kids)


def _write(objects: dict[int, bytes], trailer: bytes) -> bytes:
    parts, places, length = [b"%PDF-1.7\n"], dict[int, int](), 9
    for number, data in sorted(objects.items()):
        if OBJECT_STREAM.search(data[:HEAD]):
            continue
        part = b"%d 0 obj\n%b\nendobj\n" % (number, data.strip(b"\r\n"))
        places[number] = length
        length += len(part)
        parts.append(part)
    rows = b"".join(b"%d 1\n%010d 00000 n \n" % (number, place) for number, place in places.items())
    end = b"trailer\n<</Size %d%b>>\nstartxref\n%d\n%%%%EOF\n" % (max(objects) + 1, trailer, length)
    return b"".join([*parts, b"xref\n0 1\n0000000000 65535 f \n", rows, end])
