"""Clean foreign text for an answer: no control characters or markup, on one line, within a limit."""

import re
from collections.abc import Iterable

from toolgate.tools.api.errors import WrongArgumentsError

# C0 and C1 except tab and newline, lone surrogates, writing-direction overrides, and characters that can hide text
# ("tag" letters, annotations, variation selectors, invisible operators). A terminal would act on them, an encoder fail,
# or a reader not see them.
_UNSEEN = (
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2061-\u206f\ufeff\ufff9-\ufffb\ud800-\udfff"
    "\U000e0000-\U000e01ef]"
)
# Soft hyphen, zero-width space, word joiner and byte order mark: a search for the words around them fails
_INVISIBLE = "[\u00ad\u200b\u2060-\u2064\ufeff]"
_CONTROL = "[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]"  # C0 and C1 except tab and line ends
_TAG = r"(?s)</?[a-zA-Z][^<>]*>|<!--.*?(?:-->|\Z)"  # an unclosed comment runs to the end, as in HTML
_SUPERSCRIPT = r"(?i)<sup(?:\s[^<>]{0,200})?>\s{0,9}([+\-−]?(?:\d{1,20}|[a-z]))\s{0,9}</sup>"
_SUBSCRIPT = r"(?i)<sub(?:\s[^<>]{0,200})?>\s{0,9}(\d{1,20})\s{0,9}</sub>"
_LOWERED = str.maketrans("0123456789", "₀₁₂₃₄₅₆₇₈₉")

MAX_DIGITS = 20
MAX_WORD = 64  # characters of a name compared with others: the search is quadratic
MAX_BITS = 10_000  # Python prints no number of more than 4300 digits


def clean_text(text: str) -> str:
    """Return the text without control characters; line ends become newlines."""
    return re.sub(_UNSEEN, "", text.replace("\r\n", "\n").replace("\r", "\n"))


def remove_invisible(text: str) -> str:
    """Return the text without the characters that only say where a line may end. Joiners of letters stay."""
    return re.sub(_INVISIBLE, "", text)


def refuse_control_characters(**texts: str | None) -> None:
    """Raise WrongArgumentsError for an argument with control characters: it is stored and shown on a terminal."""
    for name, text in texts.items():
        found = re.search(_CONTROL, text) if text else None
        if found:
            raise WrongArgumentsError(f"{name!r} holds the control character U+{ord(found[0]):04X}: remove it")


def one_line(text: str) -> str:
    return " ".join(text.split())


def to_line(text: str, limit: int) -> str:
    """Return the text as one clean line of at most `limit` characters."""
    line = clean_text(one_line(text))
    return line if len(line) <= limit else line[: limit - 1].rstrip() + "…"


def strip_markup(markup: str, limit: int) -> str:
    """Return the text of an HTML fragment without tags, entities decoded, as one line of at most `limit` characters."""
    import html  # start-up: a table of two thousand entities

    scrap = markup[: limit * 20]  # the tags need room beside the text; the rest would be cut anyway
    scrap = re.sub(_SUPERSCRIPT, r"^\1", scrap)
    scrap = re.sub(_SUBSCRIPT, lambda found: found[1].translate(_LOWERED), scrap)
    return to_line(remove_invisible(html.unescape(re.sub(_TAG, "", scrap))), limit)


def format_number(number: int | None) -> str:
    """Format a caller's number for an error text: 1e308 has 309 digits."""
    if number is not None and number.bit_length() > MAX_BITS:
        return "of thousands of digits"
    digits = str(number)
    return digits if len(digits) <= MAX_DIGITS else f"{digits[:MAX_DIGITS]}…"


def closest(word: str, choices: Iterable[str]) -> str | None:
    """Return the choice closest to `word`, or None if none is similar. Case is ignored."""
    import difflib  # start-up: for mistakes only

    by_folded = {choice.casefold(): choice for choice in choices}
    matches = difflib.get_close_matches(word[:MAX_WORD].casefold(), by_folded, n=1)
    return by_folded[matches[0]] if matches else None


def truncate(text: str, limit: int) -> str:
    """Return at most `limit` characters of a text, ended at a line break if one is near."""
    if len(text) <= limit:
        return text
    end = text.rfind("\n", limit - 200, limit)
    return text[: end if end > 0 else limit].rstrip()
