"""Find and rotate the keys that seal: in the state folder, or in the database of several servers."""

from pathlib import Path
from typing import Protocol

from toolgate.server.state.keys import file as key_file
from toolgate.server.state.keys.check import settle_keys
from toolgate.server.state.keys.file import KeyFile
from toolgate.server.state.keys.sealed_state import SealingKey


class SealingKeys(Protocol):
    """The sealing keys of all servers on one state, by name."""

    def find(self, name: str) -> SealingKey:
        """Return the key of that name. It is read and created at its first use, or by `load`."""
        ...

    async def load(self, *, signs_in: bool = False) -> None:
        """Read the keys. `signs_in`: refuse damaged keys of people's sign-ins. Raises StateError."""
        ...

    async def check(self) -> None:
        """Read the keys that are there, without a change of the state database. Raises StateError."""
        ...

    async def follow(self) -> None:
        """Read the keys again and again, where nothing else shows that another process has rotated one."""
        ...

    async def rotate(self, name: str, grace: float, *, at_once: bool = False) -> None:
        """Replace a key, if there is one. Raises StateError and OSError.

        grace: seconds for which the old key stays valid for reading; with 0, all previous keys end
        at_once: use the new key before other processes have read it
        """
        ...

    async def remove_previous(self, name: str) -> None:
        """Remove the previous keys of that name."""
        ...


class KeyFolder:
    """Keys in the files of a folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def find(self, name: str) -> KeyFile:
        return KeyFile(self._folder / name)

    async def load(self, *, signs_in: bool = False) -> None:
        settle_keys(self._folder, signs_in=signs_in)

    async def check(self) -> None:
        await self.load()

    async def follow(self) -> None:
        pass

    async def rotate(self, name: str, grace: float, *, at_once: bool = False) -> None:
        key_file.rotate_key(self._folder / name, grace)

    async def remove_previous(self, name: str) -> None:
        key_file.remove_previous_keys(self._folder / name)
