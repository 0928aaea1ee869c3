"""Write and edit files: the whole new content or the old one, whatever happens. Runs in the caller's sandbox."""

import errno
import os
from typing import NamedTuple

from .paths import FileError, Places, make_key, make_stamp, open_at, read_all, read_stamp
from .reading import HEAD, TEXT_16, check_is_text

MAX_EDITED = 32 * 2**20  # bytes of a file that is edited
MAX_LINES = 20  # line numbers in an error
MAX_SHOWN = 160  # characters of a near line
NO_LINKS = {errno.EPERM, errno.ENOTSUP, errno.ENOSYS, errno.EMLINK}  # such as on a memory stick
ACL = "system.posix_acl_access"
OF_CONTENT = {"security.capability", "security.evm", "security.ima"}  # as after any write, they do not stay
NO_ROOM = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}


class Original(NamedTuple):
    """The file to replace: its descriptor, and its status before it was read."""

    file: int
    status: os.stat_result


def write(places: Places, path: str, content: str, known: dict[str, str]) -> dict[str, str]:
    """Write a file. One that exists must be as `known` says it was read: key → stamp."""
    real = places.resolve(path)
    data = _encode(content, "content")
    parent, name = places.open_parent(real, make=True)
    old = None
    try:
        old = _open_original(parent, name)
    except FileNotFoundError:
        pass
    else:
        seen = known.get(make_key(real))
        if seen is None:
            raise FileError("it exists, and was not read in this session: Read it first, or use Edit")
        if read_stamp(old.file) != seen:
            raise FileError("it has changed since it was read: Read it again")
    stamp = _replace(parent, name, data, old)
    lines = data.count(b"\n") + (not data.endswith(b"\n") and bool(data))
    done = "created" if old is None else "wrote"
    text = f"{done} {places.show(real)}: {_plural(lines, 'line')}{_note_links(old)}"
    return {"text": text, "key": make_key(real), "stamp": stamp}


def edit(places: Places, path: str, old: str, new: str, every: bool) -> dict[str, str]:
    """Replace `old`, which must occur exactly once, or `every` occurrence, by `new`."""
    if old == new:
        raise FileError("old_string and new_string are the same")
    if not old:
        raise FileError("old_string is empty: use Write to make a file, or give the text to replace")
    real = places.resolve(path)
    parent, name = places.open_parent(real)
    original = _open_original(parent, name)
    data = read_all(original.file, MAX_EDITED)
    if len(data) > MAX_EDITED:
        raise FileError(f"it has more than {MAX_EDITED:,} bytes: use sed in Bash")
    check_is_text(data[:HEAD], len(data))
    if data[:2] in TEXT_16:
        raise FileError("it is UTF-16: use Bash, such as iconv or Python")
    sought, given = _encode(old, "old_string"), _encode(new, "new_string")
    if b"\r\n" in data and sought not in data:  # Read shows lines without \r
        sought, given = (each.replace(b"\r\n", b"\n").replace(b"\n", b"\r\n") for each in (sought, given))
    count = data.count(sought)
    if not count:
        raise FileError(f"old_string is not in it{_find_near(data, old)}")
    lines = _find_lines(data, sought)
    if count > 1 and not every:
        raise FileError(f"old_string is in it {count} times, in lines {lines}: add text around it, or give replace_all")
    stamp = _replace(parent, name, data.replace(sought, given), original)
    where = f"line {lines}" if count == 1 else f"{count} places, lines {lines}"
    text = f"edited {places.show(real)}: {where}{_note_links(original)}"
    return {"text": text, "key": make_key(real), "stamp": stamp}


def _open_original(parent: int, name: str) -> Original:
    """Open a file that is replaced. Raises FileError if it could not be written in place either."""
    file = open_at(parent, name)
    status = os.fstat(file)
    is_protected = not status.st_mode & 0o222  # root may write it all the same
    if is_protected or not os.access(name, os.W_OK, dir_fd=parent):
        raise FileError("it is write-protected: if it is to be changed, chmod it in Bash first")
    return Original(file, status)


def _note_links(old: Original | None) -> str:
    """Return a note about the other names of a replaced file, or ""."""
    others = 0 if old is None else old.status.st_nlink - 1
    return (
        f" (its {_plural(others, 'other hard link')} now {'has' if others == 1 else 'have'} the old content)"
        if others
        else ""
    )


def _find_lines(data: bytes, sought: bytes) -> str:
    numbers: list[str] = []
    at, number = 0, 1
    while len(numbers) <= MAX_LINES and (found := data.find(sought, at)) >= 0:
        number += data.count(b"\n", at, found)
        numbers.append(str(number))
        number += sought.count(b"\n")
        at = found + len(sought)
    return ", ".join(numbers[:MAX_LINES]) + (", …" if len(numbers) > MAX_LINES else "")


def _find_near(data: bytes, old: str) -> str:
    """Return the lines that are most like the first one of `old`, and what else they are written with, in words."""
    from .near import describe_characters, find_near_lines  # only for errors

    first = next((line for line in old.splitlines() if line.strip()), "")
    near = find_near_lines(data.decode("utf-8", "replace"), first)
    if not near:
        return ": Read it"
    shown = "\n".join(f"{number}\t{line[:MAX_SHOWN]}" for number, line in near)
    characters = describe_characters("".join(line for _, line in near), old)
    note = f"\n[old_string lacks {characters}]" if characters else ""
    return f"; near to its first line are:\n{shown}{note}"


def _replace(parent: int, name: str, data: bytes, old: Original | None) -> str:
    """Put a file with `data` in the place of the `old` one, with its owner, mode and attributes, or where none was.
    Return its stamp."""
    fresh = f".tmp-{os.urandom(8).hex()}"
    mode = 0o666 if old is None else 0o600
    file = os.open(fresh, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, mode, dir_fd=parent)
    try:
        left = memoryview(data)
        while left:
            left = left[os.write(file, left) :]
        if old is not None:
            _keep_attributes(old, file)
        os.fsync(file)
        if old is None:
            _link(parent, fresh, name)
        else:
            if _identify(os.stat(name, dir_fd=parent, follow_symlinks=False)) != _identify(old.status):
                raise FileError("it was changed by another program just now: Read it again")
            os.rename(fresh, name, src_dir_fd=parent, dst_dir_fd=parent)
        return read_stamp(file) if len(data) > 2**24 else make_stamp(file, data)
    except OSError as error:
        if error.errno in NO_ROOM:
            raise FileError(
                f"there is no room for it ({os.strerror(error.errno or 0).lower()}): nothing was changed"
            ) from None
        raise
    finally:
        try:  # noqa: SIM105  # contextlib takes 5 ms
            os.unlink(fresh, dir_fd=parent)
        except FileNotFoundError:
            pass  # it has its name


def _identify(status: os.stat_result) -> tuple[int, ...]:
    """Return what tells whether a file, its content or its attributes have changed."""
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns


def _link(parent: int, fresh: str, name: str) -> None:
    """Give the file its name, if nothing else has got it meanwhile."""
    try:
        os.link(fresh, name, src_dir_fd=parent, dst_dir_fd=parent, follow_symlinks=False)
    except FileExistsError:
        raise FileError("another program created it just now: Read it first") from None
    except OSError as error:
        if error.errno not in NO_LINKS:
            raise
        os.rename(fresh, name, src_dir_fd=parent, dst_dir_fd=parent)


def _keep_attributes(old: Original, file: int) -> None:
    """Give `file` the owner, mode and extended attributes of the old one, and no one more rights than that gave."""
    own, mode = os.fstat(file), old.status.st_mode & 0o777  # as after any write, without setuid
    names = _attributes(old.file)
    if (old.status.st_uid, old.status.st_gid) != (own.st_uid, own.st_gid):
        try:
            os.fchown(file, old.status.st_uid, old.status.st_gid)
        except PermissionError:
            if old.status.st_uid != own.st_uid:
                raise FileError("it belongs to another user, so it can't be replaced: use Bash") from None
            if ACL in names:
                raise FileError("its group and access control list can't be kept: use Bash") from None
            both = mode >> 3 & mode & 0o007  # its group is another one: members of either had at least this
            mode = mode & 0o700 | both << 3 | both
    if ACL in _attributes(file) and ACL not in names:
        os.removexattr(file, ACL)  # the folder's default, which fchmod would put into force
    for name in names:
        try:
            os.setxattr(file, name, os.getxattr(old.file, name))
        except OSError as error:  # not ours to set
            if name == ACL:
                raise FileError(f"its access control list can't be kept ({error.strerror}): use Bash") from None
    os.fchmod(file, mode)  # last: without the list its mask would be the group's rights


def _attributes(file: int) -> list[str]:
    """Return the names of the extended attributes that a file keeps when its content changes."""
    if not hasattr(os, "listxattr"):  # Linux only
        return []
    try:
        return [name for name in os.listxattr(file) if name not in OF_CONTENT]
    except OSError:  # not supported
        return []


def _encode(text: str, name: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise FileError(f"{name} holds half of a surrogate pair, which is not a character") from None


def _plural(count: int, word: str) -> str:
    return f"{count:,} {word}{'' if count == 1 else 's'}"
