"""Name the folders of an archive, in memory and in its entries, without a whole path for each.

Whole paths of nested folders take the square of the depth. So a folder is held as its name and the folder above it.
An entry in a folder whose path exceeds MAX_PATH is called `too-deep/NUMBER/NAME`, with the folder's number in a PAX
header: the system can't open its whole path, and other programs than this one unpack the entry there.
"""

import tarfile

MAX_PATH = 4_096  # characters, as PATH_MAX of Linux has bytes
NODE = 160  # bytes of memory of a FolderName, beside its name
TOO_DEEP = "too-deep"
IN_FOLDER = "TOOLGATE.folder"  # PAX headers: the number of the folder that the entry is in,
TARGET_FOLDER = "TOOLGATE.target"  # of the folder that the target of a hard link is in,
OWN_NUMBER = "TOOLGATE.number"  # and of the folder that the entry is


class FolderName:
    """The name of a folder in the one `above` it. `number`: that of a folder which is too deep for whole paths, from 1,
    or 0. `length` is that of its path, with a slash at the end."""

    __slots__ = ("above", "depth", "length", "name", "number")

    def __init__(self, above: "FolderName | None" = None, name: str = "", number: int = 0) -> None:
        self.above = above
        self.name = name
        self.number = number
        self.depth: int = 0 if above is None else above.depth + 1
        self.length: int = 0 if above is None else above.length + len(name) + 1

    @property
    def names(self) -> list[str]:
        """Return the names of the folders on the way, this one's last."""
        names: list[str] = []
        folder: FolderName = self
        while folder.above is not None:
            names.append(folder.name)
            folder = folder.above
        names.reverse()
        return names

    @property
    def prefix(self) -> str:
        """Return what entries in the folder have before their names."""
        if self.number:
            return f"{TOO_DEEP}/{self.number}/"
        return "".join(f"{name}/" for name in self.names)


class _NumberedFolders:
    """Measures the memory of numbered folders: the paths above the first of them are held, too."""

    def __init__(self) -> None:
        self._above: FolderName | None = None  # the last whose path was counted

    def _measure(self, folder: FolderName) -> int:
        above = folder.above
        size = NODE + len(folder.name)
        if above is not None and not above.number and above is not self._above:
            self._above = above
            size += NODE * above.depth + above.length
        return size


class PackedFolders(_NumberedFolders):
    """Numbers the folders of one archive that are too deep for whole paths, while it is packed."""

    def __init__(self) -> None:
        super().__init__()
        self._count = 0

    def add(self, above: FolderName, name: str) -> tuple[FolderName, int]:
        """Return the folder called `name` in the folder `above`, and the bytes of memory that its number takes."""
        if above.length + len(name) < MAX_PATH:
            return FolderName(above, name), 0
        self._count += 1
        folder = FolderName(above, name, self._count)
        return folder, self._measure(folder)


class UnpackedFolders(_NumberedFolders):
    """The numbered folders of one archive, while it is unpacked."""

    def __init__(self) -> None:
        super().__init__()
        self._numbered: dict[int, FolderName] = {}
        self._root = FolderName()
        self._newest = ("", self._root)  # the last path that was split

    def add(self, above: FolderName, name: str, entry: tarfile.TarInfo) -> int:
        """Note the folder if it is numbered. Return the bytes of memory that it takes. Raises ValueError."""
        number = _read_number(entry, OWN_NUMBER)
        if not number:
            return 0
        self._numbered[number] = folder = FolderName(above, name, number)
        return self._measure(folder)

    def find(self, path: str, entry: tarfile.TarInfo, header: str) -> FolderName:
        """Return the folder that the header of the entry names, or without one the folder at `path`. Raises ValueError,
        and KeyError for a folder that no earlier entry is."""
        number = _read_number(entry, header)
        if number:
            return self._numbered[number]
        before, folder = self._newest
        if path != before:
            folder = self._root
            for name in path.split("/")[:-1]:
                folder = FolderName(folder, name)
            self._newest = path, folder
        return folder


def name_folders(info: tarfile.TarInfo, headers: dict[str, int]) -> None:
    """Write the numbers of folders into the PAX headers of an entry, but for 0."""
    numbers = {header: str(number) for header, number in headers.items() if number}
    if numbers:
        info.pax_headers = {**info.pax_headers, **numbers}


def _read_number(entry: tarfile.TarInfo, header: str) -> int:
    return int(entry.pax_headers.get(header, "0"))
