"""Make foreign text fit for an answer: without control characters and markup, on one line, within a limit."""

import re
from collections.abc import Iterable

from toolgate.tools.api.errors import WrongArgumentsError

# C0 and C1 but tab and newline, lone surrogates, overrides of writing direction, and in what text can be hidden ("tag"
# letters, annotations, the supplement of variation selectors, operators that are not seen): what a terminal would act
# on, an encoder would choke on, or a reader would not see.
_UNSEEN = (
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2061-\u206f\ufeff\ufff9-\ufffb\ud800-\udfff"
    "\U000e0000-\U000e01ef]"
)
_CONTROL = "[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]"  # C0 and C1 but tab and the ends of lines
_TAG = r"(?s)</?[a-zA-Z][^<>]*>|<!--.*?(?:-->|\Z)"  # a comment without an end is one to the end, as in HTML

MAX_DIGITS = 20
MAX_WORD = 64  # characters of a name that is looked for among others: the search is quadratic
MAX_BITS = 10_000  # Python prints no number of more than 4300 digits


def clean_text(text: str) -> str:
    """Without control characters; line ends are newlines."""
    return re.sub(_UNSEEN, "", text.replace("\r\n", "\n").replace("\r", "\n"))


def refuse_control_characters(**texts: str | None) -> None:
    """Raise WrongArgumentsError for an argument with a control character: it is kept, and shown on a terminal."""
    for name, text in texts.items():
        found = re.search(_CONTROL, text) if text else None
        if found:
            raise WrongArgumentsError(
                f"{name!r} holds the control character U+{ord(found[0]):04X}, which no text here may: drop it"
            )


def one_line(text: str) -> str:
    return " ".join(text.split())


def to_line(text: str, limit: int) -> str:
    """One line of at most `limit` characters, clean."""
    line = clean_text(one_line(text))
    return line if len(line) <= limit else line[: limit - 1].rstrip() + "…"


def strip_markup(markup: str, limit: int) -> str:
    """The text of a scrap of HTML: tags gone, entities read, on one line of at most `limit` characters."""
    import html  # start-up: a table of two thousand entities

    scrap = markup[: limit * 20]  # tags come on top of the text; what is beyond would be cut anyway
    return to_line(html.unescape(re.sub(_TAG, "", scrap)), limit)


def format_number(number: int | None) -> str:
    """A number somebody sent, for an error text: 1e308 has 309 digits."""
    if number is not None and number.bit_length() > MAX_BITS:
        return "of thousands of digits"
    digits = str(number)
    return digits if len(digits) <= MAX_DIGITS else f"{digits[:MAX_DIGITS]}…"


def closest(word: str, choices: Iterable[str]) -> str | None:
    """Return the choice that is most like `word`, or None when none is like it. Case is ignored."""
    import difflib  # start-up: for mistakes only

    by_folded = {choice.casefold(): choice for choice in choices}
    matches = difflib.get_close_matches(word[:MAX_WORD].casefold(), by_folded, n=1)
    return by_folded[matches[0]] if matches else None


def truncate(text: str, limit: int) -> str:
    """The beginning of a text, ended at a line where there is one near, at most `limit` characters."""
    if len(text) <= limit:
        return text
    end = text.rfind("\n", limit - 200, limit)
    return text[: end if end > 0 else limit].rstrip()
