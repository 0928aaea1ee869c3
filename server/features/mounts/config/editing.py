"""Write mounts into a config file, and remove them: comments, order and all else in the file stay."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from toolgate.server.config.files import toml_table
from toolgate.server.config.files.config_file import ConfigFile, ConfigFileError, read_config_file
from toolgate.server.config.files.jsonc import ConfigSyntaxError

TABLE = "mounts"


class MountsFile:
    """The mounts of a config file, and its text with the changes so far."""

    def __init__(self, file: ConfigFile) -> None:
        self.file = file
        self._text = file.text or ""

    @property
    def mounts(self) -> Mapping[str, Any]:
        """Return what the file has under each name."""
        found = self._edit(toml_table.parse_toml).get(TABLE)
        return found if isinstance(found, dict) else {}

    def set_mount(self, name: str, rows: Mapping[str, Any]) -> None:
        """Add a mount, or give one that is there these rows alone. Raises ConfigFileError."""
        old = self.mounts.get(name)
        stale = [key for key in old if key not in rows] if isinstance(old, dict) else []
        self._text = self._edit(lambda text: toml_table.set_table(text, (TABLE, name), rows, stale))

    def remove_mount(self, name: str) -> None:
        """Remove a mount that is there. Raises ConfigFileError."""
        self._text = self._edit(lambda text: toml_table.remove_table(text, (TABLE, name)))

    def save(self) -> None:
        """Replace the file. Raises ConfigFileError if it has changed meanwhile, OSError."""
        if self._text != (self.file.text or ""):
            self.file.replace(self._text, keep_backup=True)  # a copy of keys would stay for good

    def _edit(self, work: Callable[[str], Any]) -> Any:
        try:
            return work(self._text)
        except ConfigSyntaxError as error:
            raise ConfigFileError(f"{self.file}: {error}") from None


def open_mounts_file(path: Path) -> MountsFile:
    """Return the mounts of a config file, which may be missing. Raises ConfigFileError."""
    return MountsFile(read_config_file(path))
