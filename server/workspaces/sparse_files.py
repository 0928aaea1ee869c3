"""Files with holes in a tar: only what is data is read and written. Knows no folders.

The format is GNU's "sparse 1.0" for PAX, so that `tar` itself unpacks it: the file is as long as `GNU.sparse.realsize`
says, and what is stored of it is a list of its pieces of data, then these, one behind the other.
Source: https://www.gnu.org/software/tar/manual/html_section/Sparse-Formats.html#PAX-1
"""

import errno
import io
import os
import tarfile
from typing import IO

SMALLEST = 64 * 2**10  # bytes of a hole that is left out: shorter ones make a file 17 times as long at most
MAX_PIECES = 1_000_000  # of a file: 100 MiB of memory
MAX_SIZE = 2**44  # bytes of a file: ext4 has no longer ones
MAX_STORED = 8 * 2**30 - 1  # bytes of list and pieces: more would need a header that contradicts the other
MAX_DIGITS = 20  # and a line break, of a number in the list

DataMap = list[tuple[int, int]]  # where each begins, and how long it is


def find_data(descriptor: int, found: os.stat_result) -> DataMap | None:
    """What of a file is data, in order; None where it has no holes worth the list. Raises OSError."""
    if found.st_blocks * 512 >= found.st_size:
        return None
    held: DataMap = []
    end = 0
    while (begin := _data(descriptor, end)) is not None and begin < found.st_size:
        end = min(os.lseek(descriptor, begin, os.SEEK_HOLE), found.st_size)
        if held and begin - sum(held[-1]) < SMALLEST:
            held[-1] = held[-1][0], end - held[-1][0]
        elif len(held) < MAX_PIECES:
            held.append((begin, end - begin))
        else:
            raise OSError(errno.EFBIG, "a file in it has too many holes")
    return None if held == [(0, found.st_size)] else held


def _data(descriptor: int, after: int) -> int | None:
    """Where data begins next; None: there is none."""
    try:
        return os.lseek(descriptor, after, os.SEEK_DATA)
    except OSError as error:
        if error.errno != errno.ENXIO:
            raise
        return None


def pax_headers(size: int) -> dict[str, str]:
    """Those of a file of so many bytes."""
    return {"GNU.sparse.major": "1", "GNU.sparse.minor": "0", "GNU.sparse.realsize": str(size)}


def encode_map(held: DataMap, size: int) -> bytes:
    """The list, as it is before the pieces. One of no bytes says how long the file is, as GNU's has it."""
    whole = [*held, (size, 0)]
    text = "".join(f"{number}\n" for number in (len(whole), *(each for piece in whole for each in piece)))
    return text.encode().ljust(-(-len(text) // tarfile.BLOCKSIZE) * tarfile.BLOCKSIZE, b"\0")


class SparseReader(io.RawIOBase):
    """The list and the pieces of an open file, as one."""

    def __init__(self, file: IO[bytes], held: DataMap, size: int) -> None:
        self._file = file
        self._head = encode_map(held, size)
        self._left = list(reversed(held))
        self.size = len(self._head) + sum(length for _, length in held)

    def read(self, size: int = -1) -> bytes:
        """Exactly so many bytes, unless it ends."""
        data = bytearray()
        while len(data) < size and (more := self._some(size - len(data))):
            data += more
        return bytes(data)

    def _some(self, most: int) -> bytes:
        if self._head:
            data, self._head = self._head[:most], self._head[most:]
            return data
        if not self._left:
            return b""
        begin, length = self._left.pop()
        data = os.pread(self._file.fileno(), min(most, length), begin)
        if len(data) < length and data:
            self._left.append((begin + len(data), length - len(data)))
        return data  # shorter than it was, where somebody cut it: tarfile complains


def parse_map(source: IO[bytes], stored: int, size: int) -> DataMap:
    """The list of a file of `size` bytes, read off the front of its `stored` ones. Raises ValueError."""
    numbers = _Numbers(source, stored)
    count = numbers.next()
    if not 0 <= size <= MAX_SIZE or count > MAX_PIECES + 1:
        raise ValueError("a list of holes is too long")
    held: DataMap = []
    end = 0
    for _ in range(count):
        begin, length = numbers.next(), numbers.next()
        if begin < end or begin + length > size:
            raise ValueError("a list of holes is in no order")
        held.append((begin, length))
        end = begin + length
    if numbers.taken + sum(length for _, length in held) != stored:
        raise ValueError("a list of holes says another size")
    return held


class _Numbers:
    """The lines of the list, read block by block."""

    def __init__(self, source: IO[bytes], most: int) -> None:
        self._source = source
        self._most = most
        self._rest = b""
        self.taken = 0  # bytes

    def next(self) -> int:
        while b"\n" not in self._rest:
            if len(self._rest) > MAX_DIGITS or self.taken + tarfile.BLOCKSIZE > self._most:
                raise ValueError("a list of holes does not end")
            self._rest += self._source.read(tarfile.BLOCKSIZE)
            self.taken += tarfile.BLOCKSIZE
        line, _, self._rest = self._rest.partition(b"\n")
        if not line.isdigit() or len(line) > MAX_DIGITS:
            raise ValueError("a list of holes has a line that is no number")
        return int(line)
