"""Remove the metadata of PNG and JPEG files: no fault in it may keep a picture from being shown.

What decoding and turning the picture need stays: transparency, orientation, and the colours of CMYK. A file that is
cut short keeps its last part.
"""

import struct
import zlib
from collections.abc import Iterator

PNG_SIGNATURE = b"\x89PNG\r\n\x1a\n"
PNG_END = b"IEND\xae\x42\x60\x82"  # the last chunk, which is empty: its type and checksum
JPEG_SIGNATURE = b"\xff\xd8\xff"

CHUNK_HEAD = struct.Struct(">I4s")  # of a PNG: the size of its data, and its type
CHECKSUM = 4  # bytes after a chunk's data
MAX_EXIF = 65_536  # bytes: a JPEG can hold no more
MAX_PROFILE = 2**20  # bytes of an unpacked colour profile
ANCILLARY = 0x20  # the bit of a type's first letter that marks a chunk as not needed (PNG section 5.4)

START_OF_SCAN = 0xDA
COMMENT = 0xFE
APPLICATION = range(0xE0, 0xF0)
EXIF, ADOBE = 0xE1, 0xEE
LEAST_ADOBE = 12  # bytes of the segment that tells the colours
STAND_ALONE = (0x01, *range(0xD0, 0xD9))  # markers without data


def remove_metadata(body: bytes) -> bytes:
    """Return the file without its metadata, or as it is if that is not possible."""
    if body.startswith(PNG_SIGNATURE):
        return b"".join([PNG_SIGNATURE, *_keep_chunks(memoryview(body))])
    if body.startswith(JPEG_SIGNATURE):
        return b"".join(_keep_segments(memoryview(body)))
    return body


def _keep_chunks(body: memoryview) -> Iterator[memoryview]:
    """Yield the chunks of a PNG that decoding needs."""
    start = len(PNG_SIGNATURE)
    while start + CHUNK_HEAD.size <= len(body):
        size, kind = CHUNK_HEAD.unpack_from(body, start)
        end = start + CHUNK_HEAD.size + size + CHECKSUM
        data = body[start + CHUNK_HEAD.size : end - CHECKSUM]
        if not kind[0] & ANCILLARY or _is_needed(kind, data):
            yield body[start:end]
        start = end


def _is_needed(kind: bytes, data: memoryview) -> bool:
    if kind == b"iCCP":
        return _is_profile(bytes(data))
    return kind == b"tRNS" or (kind == b"eXIf" and len(data) <= MAX_EXIF)


def _is_profile(data: bytes) -> bool:
    """Return whether the data of an iCCP chunk is a profile of an allowed size."""
    _, separator, packed = data.partition(b"\0")
    decoder = zlib.decompressobj()
    try:
        decoder.decompress(packed[1:], MAX_PROFILE)
    except zlib.error:
        return False
    return bool(separator) and packed[:1] == b"\0" and decoder.eof


def _keep_segments(body: memoryview) -> Iterator[memoryview]:
    """Yield the segments of a JPEG that decoding needs, and all from its first scan on."""
    yield body[:2]
    start = 2
    while start + 4 <= len(body) and body[start] == 0xFF:
        marker = body[start + 1]
        if marker == START_OF_SCAN:
            break
        if marker == 0xFF or marker in STAND_ALONE:
            start += 1 if marker == 0xFF else 2
            continue
        end = start + 2 + int.from_bytes(body[start + 2 : start + 4], "big")
        if _is_needed_segment(marker, body[start + 4 : end]):
            yield body[start:end]
        start = end
    yield body[start:]


def _is_needed_segment(marker: int, data: memoryview) -> bool:
    if marker == EXIF:
        return bytes(data[:6]) == b"Exif\0\0"
    if marker == ADOBE:
        return len(data) >= LEAST_ADOBE
    return marker != COMMENT and marker not in APPLICATION
