"""Read and write files with holes in a tar, storing only their data.

The format is GNU's "sparse 1.0" for PAX, so `tar` unpacks it too. `GNU.sparse.realsize` is the length of the file;
stored are a map of its data, then the data. Source:
https://www.gnu.org/software/tar/manual/html_section/Sparse-Formats.html#PAX-1
"""

import errno
import io
import os
import tarfile
from typing import IO

SMALLEST = 64 * 2**10  # bytes of a hole that is omitted: shorter ones make a file 17 times as long at most
MAX_PIECES = 1_000_000  # of a file: 100 MiB of memory
MAX_SIZE = 2**44  # bytes of a file: ext4 has no longer ones
MAX_STORED = 8 * 2**30 - 1  # bytes of map and data: more would need a second, contradicting header
MAX_DIGITS = 20  # of a number in the map, and a line break

DataMap = list[tuple[int, int]]  # offset and length of each piece


def find_data(descriptor: int, found: os.stat_result) -> DataMap | None:
    """Return the map of a file's data, or None without a hole worth it. Raises OSError."""
    if found.st_blocks * 512 >= found.st_size:
        return None
    data_map: DataMap = []
    end = 0
    while (begin := _data(descriptor, end)) is not None and begin < found.st_size:
        end = min(os.lseek(descriptor, begin, os.SEEK_HOLE), found.st_size)
        if data_map and begin - sum(data_map[-1]) < SMALLEST:
            data_map[-1] = data_map[-1][0], end - data_map[-1][0]
        elif len(data_map) < MAX_PIECES:
            data_map.append((begin, end - begin))
        else:
            raise OSError(errno.EFBIG, "a file in it has too many holes")
    return None if data_map == [(0, found.st_size)] else data_map


def _data(descriptor: int, after: int) -> int | None:
    """Return where data begins next, or None."""
    try:
        return os.lseek(descriptor, after, os.SEEK_DATA)
    except OSError as error:
        if error.errno != errno.ENXIO:
            raise
        return None


def pax_headers(size: int) -> dict[str, str]:
    """Return the headers of a file of `size` bytes."""
    return {"GNU.sparse.major": "1", "GNU.sparse.minor": "0", "GNU.sparse.realsize": str(size)}


def encode_map(data_map: DataMap, size: int) -> bytes:
    """Return the map in its stored form. As in GNU's, an empty piece at the end has the length of the file."""
    whole = [*data_map, (size, 0)]
    text = "".join(f"{number}\n" for number in (len(whole), *(each for piece in whole for each in piece)))
    return text.encode().ljust(-(-len(text) // tarfile.BLOCKSIZE) * tarfile.BLOCKSIZE, b"\0")


class SparseReader(io.RawIOBase):
    """The map and the data of an open file, as one stream."""

    def __init__(self, file: IO[bytes], data_map: DataMap, size: int) -> None:
        self._file = file
        self._head = encode_map(data_map, size)
        self._left = list(reversed(data_map))
        self.size = len(self._head) + sum(length for _, length in data_map)

    def read(self, size: int = -1) -> bytes:
        """Return exactly `size` bytes, unless it ends."""
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
        return data  # shorter where the file was truncated meanwhile: tarfile raises


def parse_map(source: IO[bytes], stored: int, size: int) -> DataMap:
    """Return the map of a file of `size` bytes, from the front of its `stored` ones. Raises ValueError."""
    numbers = _Numbers(source, stored)
    count = numbers.next()
    if not 0 <= size <= MAX_SIZE or count > MAX_PIECES + 1:
        raise ValueError("a list of holes is too long")
    data_map: DataMap = []
    end = 0
    for _ in range(count):
        begin, length = numbers.next(), numbers.next()
        if begin < end or begin + length > size:
            raise ValueError("a list of holes is not in order")
        data_map.append((begin, length))
        end = begin + length
    if numbers.taken + sum(length for _, length in data_map) != stored:
        raise ValueError("a list of holes has another size")
    return data_map


class _Numbers:
    """The numbers of a map, read block by block."""

    def __init__(self, source: IO[bytes], most: int) -> None:
        self._source = source
        self._most = most
        self._rest = b""
        self.taken = 0  # bytes

    def next(self) -> int:
        while b"\n" not in self._rest:
            if len(self._rest) > MAX_DIGITS or self.taken + tarfile.BLOCKSIZE > self._most:
                raise ValueError("a list of holes has no end")
            self._rest += self._source.read(tarfile.BLOCKSIZE)
            self.taken += tarfile.BLOCKSIZE
        line, _, self._rest = self._rest.partition(b"\n")
        if not line.isdigit() or len(line) > MAX_DIGITS:
            raise ValueError("a list of holes has a line that is not a number")
        return int(line)
