"""Read and replace the configuration file of another program: whole, with its mode, and with a backup beside it."""

import os
import stat
import tempfile
from pathlib import Path

import msgspec

from toolgate.server.base.text import describe_os_error, escape_unprintable

MAX_SIZE = 16 * 2**20  # bytes: Claude Code's file holds a history, and reaches some megabytes
BACKUP = ".toolgate-backup"  # the file as it was before the last change by Toolgate


class ConfigFileError(Exception):
    """A client's file can't be read or changed; the message names it and says why."""


class ConfigFile(msgspec.Struct, frozen=True):
    """A client's file: its path, the file that a link leads to, and its text and status, or None if it is missing.

    `new_mode` is the mode of a new file: private in the home, where clients keep tokens, public in a project.
    """

    path: Path
    target: Path
    text: str | None
    status: os.stat_result | None
    new_mode: int = 0o600

    @property
    def backup(self) -> Path:
        return self.target.with_name(self.target.name + BACKUP)

    def read_backup(self) -> str | None:
        """Return the text of the backup, or None."""
        try:
            return read_config_file(self.backup).text if not self.backup.is_symlink() else None
        except (ConfigFileError, OSError):
            return None

    def replace(self, text: str, keep_backup: bool = False) -> bool:
        """Write the text in place of the file, and return whether there is a backup of the old one.

        Raises ConfigFileError if the file has changed meanwhile, OSError.
        """
        self._check_unchanged()
        self.target.parent.mkdir(parents=True, exist_ok=True)
        if self.text is not None and not keep_backup:
            self._write(self.backup, self.text)
        self._write(self.target, text)
        return self.text is not None

    def restore(self, text: str | None) -> None:
        """Write what was there before Toolgate came, or remove the file if there was none, and drop the backup."""
        self._check_unchanged()
        if text is None:
            self.target.unlink()
        else:
            self._write(self.target, text)
        self.backup.unlink(missing_ok=True)

    def _write(self, path: Path, text: str) -> None:
        mode = self.new_mode if self.status is None else stat.S_IMODE(self.status.st_mode)
        descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        try:
            with open(descriptor, "w", encoding="utf-8", newline="") as file:
                file.write(text)
                file.flush()
                os.fchmod(file.fileno(), mode)
                if self.status is not None and self.status.st_gid != os.fstat(file.fileno()).st_gid:
                    os.fchown(file.fileno(), -1, self.status.st_gid)
                os.fsync(file.fileno())
            self._check_unchanged()
            os.replace(name, path)
        except BaseException:
            os.unlink(name)
            raise

    def _check_unchanged(self) -> None:
        now = read_config_file(self.path).text
        if self.status is not None and not self.status.st_mode & 0o200:
            raise ConfigFileError(f"{self} is read-only: chmod u+w it first")
        if now != self.text:
            raise ConfigFileError(f"{self} has changed meanwhile: run the command again")

    def __str__(self) -> str:
        link = f" (a link to {escape_unprintable(str(self.target))})" if self.path.is_symlink() else ""
        return escape_unprintable(str(self.path)) + link


def read_config_file(path: Path, inside: Path | None = None) -> ConfigFile:
    """Return the file at `path`; a link is followed. With `inside`, it must lie in that folder.

    Raises ConfigFileError for what is no text file of the current user.
    """
    shown = escape_unprintable(str(path))
    target = Path(os.path.realpath(path))
    if inside is not None and not target.is_relative_to(os.path.realpath(inside)):
        raise ConfigFileError(f"{shown} leads out of the project, to {escape_unprintable(str(target))}")
    try:
        descriptor = os.open(target, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOFOLLOW)
    except FileNotFoundError:
        if path.is_symlink():
            raise ConfigFileError(f"{shown} is a link to a missing file: {escape_unprintable(str(target))}") from None
        return ConfigFile(path, target, None, None, 0o600 if inside is None else 0o644)
    except OSError as error:
        raise ConfigFileError(f"can't read {escape_unprintable(describe_os_error(error))}") from None
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode):
        os.close(descriptor)
        raise ConfigFileError(f"{shown} is not a regular file")
    with open(descriptor, "rb") as file:
        if status.st_uid != os.geteuid():
            raise ConfigFileError(f"{shown} belongs to another user ({status.st_uid}): run this command as that user")
        data = file.read(MAX_SIZE + 1)
    if len(data) > MAX_SIZE:
        raise ConfigFileError(f"{shown} has more than {MAX_SIZE} bytes")
    try:
        return ConfigFile(path, target, data.decode(), status)
    except UnicodeDecodeError as error:
        raise ConfigFileError(f"{shown} is not UTF-8 text (byte {error.start})") from None
