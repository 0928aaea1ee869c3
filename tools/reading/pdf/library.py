"""Call PDFium, which Chromium shows PDFs with.

PDFium knows the CMaps that Chinese, Japanese and Korean PDFs name, and rebuilds a lost table of objects. It is not
thread-safe: a worker reads one PDF at a time.
"""

import ctypes
import importlib
from collections.abc import Iterator
from functools import cache
from typing import Any

import msgspec

MAX_STRING = 65_536  # characters of a field, a name or a title

Handle = Any  # ctypes has no types


class Box(msgspec.Struct, frozen=True):
    """A rectangle on a page, in points; the origin is below on the left."""

    left: float
    bottom: float
    right: float
    top: float

    def contains(self, x: float, y: float) -> bool:
        return self.left <= x <= self.right and self.bottom <= y <= self.top


@cache
def load_library() -> Any:
    """Return PDFium's functions. It looks for no fonts of the system: they don't change a text."""
    library: Any = importlib.import_module("pypdfium2_raw")  # start-up
    config = library.FPDF_LIBRARY_CONFIG(version=2)
    no_folders = (ctypes.POINTER(ctypes.c_char) * 1)()
    config.m_pUserFontPaths = ctypes.cast(no_folders, type(config.m_pUserFontPaths))
    library.FPDF_InitLibraryWithConfig(ctypes.byref(config))
    library.FPDFText_GetTextObject.restype = ctypes.c_void_p  # a number, which is faster than an object
    return library


def iterate(count: Any, get: Any, container: Handle) -> Iterator[Handle]:
    return (get(container, index) for index in range(max(0, count(container))))


def to_box(rectangle: Any) -> Box:
    left, right = sorted((rectangle.left, rectangle.right))
    bottom, top = sorted((rectangle.bottom, rectangle.top))
    return Box(left, bottom, right, top)


def read_wide(function: Any, *arguments: Any) -> str:
    """Return a string that PDFium writes as UTF-16 into a buffer of bytes."""
    library = load_library()
    kind = ctypes.POINTER(library.FPDF_WCHAR)
    size = function(*arguments, None, 0)
    if not 2 < size <= 2 * MAX_STRING:
        return ""
    buffer = ctypes.create_string_buffer(size)
    function(*arguments, ctypes.cast(buffer, kind), size)
    return buffer.raw[: size - 2].decode("utf-16-le", "replace")


def read_bytes(function: Any) -> str:
    size = function(None, 0)
    if not 1 < size <= MAX_STRING:
        return ""
    buffer = ctypes.create_string_buffer(size)
    function(buffer, size)
    return buffer.raw[: size - 1].decode("utf-8", "replace")
