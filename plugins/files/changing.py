"""Write and edit files: the whole new content or the old one, whatever happens. Runs in the caller's sandbox."""

import errno
import os

from .paths import FileError, Places, make_key, make_stamp, open_at, read_all, read_stamp
from .reading import HEAD, TEXT_16, check_is_text

MAX_EDITED = 32 * 2**20  # bytes of a file that is edited
MAX_LINES = 20  # line numbers in an error
MAX_SHOWN = 160  # characters of a near line
NO_LINKS = {errno.EPERM, errno.ENOTSUP, errno.ENOSYS, errno.EMLINK}  # such as on a memory stick
NO_ROOM = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}


def write(places: Places, path: str, content: str, known: dict[str, str]) -> dict[str, str]:
    """Write a file. One that exists must be as `known` says it was read: key → stamp."""
    real = places.resolve(path)
    data = _encode(content, "content")
    parent, name = places.open_parent(real, make=True)
    before = None
    try:
        file = open_at(parent, name)
        before = os.fstat(file)
    except FileNotFoundError:
        pass
    else:
        seen = known.get(make_key(real))
        if seen is None:
            raise FileError("it exists, and was not read in this session: Read it first, or use Edit")
        if read_stamp(file) != seen:
            raise FileError("it has changed since it was read: Read it again")
    stamp = _replace(parent, name, data, before)
    lines = data.count(b"\n") + (not data.endswith(b"\n") and bool(data))
    done = "created" if before is None else "wrote"
    return {"text": f"{done} {places.show(real)}: {_plural(lines, 'line')}", "key": make_key(real), "stamp": stamp}


def edit(places: Places, path: str, old: str, new: str, every: bool) -> dict[str, str]:
    """Replace `old`, which must occur exactly once, or `every` occurrence, by `new`."""
    if old == new:
        raise FileError("old_string and new_string are the same")
    if not old:
        raise FileError("old_string is empty: use Write to make a file, or give the text to replace")
    real = places.resolve(path)
    parent, name = places.open_parent(real)
    file = open_at(parent, name)
    before = os.fstat(file)
    data = read_all(file, MAX_EDITED)
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
    stamp = _replace(parent, name, data.replace(sought, given), before)
    where = f"line {lines}" if count == 1 else f"{count} places, lines {lines}"
    return {"text": f"edited {places.show(real)}: {where}", "key": make_key(real), "stamp": stamp}


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
    """Return the lines that are most like the first one of `old`, in words."""
    from .near import find_near_lines  # only for errors

    first = next((line for line in old.splitlines() if line.strip()), "")
    near = find_near_lines(data.decode("utf-8", "replace"), first)
    if not near:
        return ": Read it"
    return "; near to its first line are:\n" + "\n".join(f"{number}\t{line[:MAX_SHOWN]}" for number, line in near)


def _replace(parent: int, name: str, data: bytes, before: os.stat_result | None) -> str:
    """Put a file with `data` in the place of the one that was `before`, with its owner, mode and attributes, or where
    none was. Return its stamp."""
    fresh = f".tmp-{os.urandom(8).hex()}"
    mode = 0o666 if before is None else 0o600
    file = os.open(fresh, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, mode, dir_fd=parent)
    try:
        left = memoryview(data)
        while left:
            left = left[os.write(file, left) :]
        if before is not None:
            _keep_attributes(parent, name, file, before)
        os.fsync(file)
        if before is None:
            _link(parent, fresh, name)
        else:
            now = os.stat(name, dir_fd=parent, follow_symlinks=False)
            if (now.st_ino, now.st_mtime_ns, now.st_size) != (before.st_ino, before.st_mtime_ns, before.st_size):
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


def _keep_attributes(parent: int, name: str, file: int, before: os.stat_result) -> None:
    own = os.fstat(file)
    if before.st_uid != own.st_uid or before.st_gid != own.st_gid:
        try:
            os.fchown(file, before.st_uid, before.st_gid)
        except PermissionError:
            if before.st_uid != own.st_uid:
                raise FileError("it belongs to another user, so it can't be replaced: use Bash") from None
    os.fchmod(file, before.st_mode & 0o777)
    if not hasattr(os, "listxattr"):  # Linux only
        return
    old = open_at(parent, name)
    try:
        for attribute in os.listxattr(old):
            os.setxattr(file, attribute, os.getxattr(old, attribute))
    except OSError:
        pass  # not supported, or not ours to set
    finally:
        os.close(old)


def _encode(text: str, name: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise FileError(f"{name} holds half of a surrogate pair, which is not a character") from None


def _plural(count: int, word: str) -> str:
    return f"{count:,} {word}{'' if count == 1 else 's'}"
