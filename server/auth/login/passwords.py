"""Check new passwords: that they are long enough, and not among those that guessers try first (NIST SP 800-63B).

`common_passwords.bin` holds the first bytes of the SHA-256 of each common password, sorted: a search needs a few reads
of the file. `common_passwords.txt` says where they come from.
"""

import hashlib
import os
import re
import unicodedata
from collections.abc import Iterable
from itertools import pairwise
from pathlib import Path

MIN_PASSWORD = 8  # characters (NIST SP 800-63B)
MAX_PASSWORD = 1_024  # characters: a passphrase fits, and hashing it costs nothing yet
TYPED = 2  # times as many characters before normalization: an accent may be a character of its own
MAX_UNIT = 4  # characters that a password may not be made of by repeating them
MAX_SAME = 2  # different characters that are too few
MIN_WORD = 3  # characters of a name that count as a part of it
MIN_BARE = 4  # characters of a common password, without digits and marks at its ends
MAX_AFFIX = 5  # digits and marks at its ends that make it no better, such as a year and an exclamation mark
AFFIXES = "0123456789!?.,:;-_*#$%&@+/()[] "
COMMON = Path(__file__).with_name("common_passwords.bin")
DIGEST = 5  # bytes of each digest there: of twenty million other passwords one looks common
LOOKALIKES = tuple(str.maketrans("@4310$57!", letters) for letters in ("aaeiosstl", "aaelossti"))
KEYS = ("1234567890", "qwertyuiop", "qwertzuiop", "azertyuiop", "asdfghjkl", "qsdfghjklm", "1qaz2wsx3edc4rfv5tgb")
COMMON_ONES = "a common one, a sequence or a repetition"
BETTER = "several random words are easy to remember and hard to guess"


class WeakPasswordError(Exception):
    """A password is refused; the text says why, and what would be right."""


def check_password(password: str, names: Iterable[str]) -> str:
    """Return the password in one spelling (RFC 8265 section 4.2). `names` are the person's and the server's. Raises
    WeakPasswordError."""
    plain = compose_password(password)
    if plain is None or len(plain) > MAX_PASSWORD:
        raise WeakPasswordError(f"a password may have at most {MAX_PASSWORD} characters")
    if not plain.isascii() and any("\ud800" <= character <= "\udfff" for character in plain):
        raise WeakPasswordError("a password must be valid UTF-8")
    if "\0" in plain:  # no form sends one
        raise WeakPasswordError("a password may not contain a NUL character")
    if len(plain) < MIN_PASSWORD:
        raise WeakPasswordError(f"a password must have at least {MIN_PASSWORD} characters")
    folded = fold_password(plain)
    if is_made_of(folded, names):
        raise WeakPasswordError(f"a password must differ from the name and the server's name: {BETTER}")
    if is_regular(folded) or is_common(folded):
        raise WeakPasswordError(f"a password may not be {COMMON_ONES}, since guessers try those first: {BETTER}")
    return plain


def compose_password(password: str) -> str | None:
    """Return the password in one spelling, or None if it is too long."""
    return unicodedata.normalize("NFC", password) if len(password) <= TYPED * MAX_PASSWORD else None


def fold_password(password: str) -> str:
    """Return a password without what guessers vary first: upper case, kinds of letters, blanks around it."""
    return unicodedata.normalize("NFKC", password).casefold().strip()


def is_made_of(folded: str, names: Iterable[str]) -> bool:
    """Return whether a password is a name, forwards or backwards, or only parts of names beside digits and marks."""
    words: set[str] = set()
    for name in names:
        whole = fold_password(name)
        if folded in (whole, whole[::-1]):
            return True
        words.update(word for word in _split_words(whole) if len(word) >= MIN_WORD)
    words |= {word[::-1] for word in words}
    spellings = (each for word in (folded, folded.strip(AFFIXES)) for each in _list_spellings(word))
    split = [_split_words(spelling) for spelling in spellings]
    return any(parts and all(_is_built_of(part, words) for part in parts) for parts in split)


def _list_spellings(word: str) -> list[str]:
    """Return a word as it is, and with letters for the digits and marks that look like them."""
    return [word, *(word.translate(table) for table in LOOKALIKES)]


def _split_words(text: str) -> list[str]:
    return [word for word in re.split(r"[\W\d_]+", text) if word]


def _is_built_of(part: str, words: Iterable[str]) -> bool:
    """Return whether words, one after the other, are the whole part."""
    ends = {0}
    for at in range(len(part)):
        if at in ends:
            ends |= {at + len(word) for word in words if part.startswith(word, at)}
    return len(part) in ends


def is_regular(folded: str) -> bool:
    """Return whether a password repeats a few characters, or goes along the alphabet, the digits or a row of keys."""
    size = len(folded)
    if len(set(folded)) <= MAX_SAME or any(folded == (folded[:unit] * size)[:size] for unit in range(1, MAX_UNIT + 1)):
        return True
    if any(folded == folded[:unit] * (size // unit) for unit in range(MAX_UNIT + 1, min(MIN_PASSWORD, size))):
        return True
    steps = {ord(after) - ord(before) for before, after in pairwise(folded)}
    return steps in ({1}, {-1}) or any(folded in row or folded in row[::-1] for row in KEYS)


def is_common(folded: str) -> bool:
    """Return whether a password is in the list of common ones, or is one of them with little at its ends: a few digits
    and marks, or a regular row of them."""
    bare = folded.strip(AFFIXES)
    affix = "".join(folded.split(bare, 1)) if bare else ""
    is_near = len(affix) <= MAX_AFFIX or is_regular(affix) or _has_digest(affix)
    words = {folded} | ({bare} if len(bare) >= MIN_BARE and is_near else set())
    return any(_has_digest(spelling) for each in words for spelling in _list_spellings(each))


def _has_digest(password: str) -> bool:
    """Search the file for the digest of a password. Raises OSError."""
    digest = hash_password(password)
    with COMMON.open("rb") as file:
        low, high = 0, os.fstat(file.fileno()).st_size // DIGEST
        while low < high:
            middle = (low + high) // 2
            file.seek(middle * DIGEST)
            entry = file.read(DIGEST)
            if entry == digest:
                return True
            low, high = (middle + 1, high) if entry < digest else (low, middle)
    return False


def hash_password(password: str) -> bytes:
    return hashlib.sha256(password.encode("utf-8", "surrogatepass")).digest()[:DIGEST]
