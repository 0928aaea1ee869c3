"""Detect the encoding of a body that declares none and is no UTF-8.

Each language has its letters, ordered by their frequency. The body's bytes are read in each encoding, and the language
whose letters fit best decides. This is naive Bayes on the letters beyond ASCII.
"""

import re
from collections import Counter
from functools import cache
from math import exp, log

from toolgate.tools.reading.encodings import decoders
from toolgate.tools.reading.encodings.alphabets import (
    ALPHABETS,
    CHARACTERS,
    COMMON_PUNCTUATION,
    KANA,
    WIDE_PUNCTUATION,
    WIDE_SETS,
)

SAMPLE = 16_384  # bytes that are judged
HIGH_LINE = re.compile(rb"[\x80-\xff][^\r\n]*")
ISO_2022_JP = re.compile(rb"\x1b\$[@B]")
WIDE = 0.3  # share of NUL bytes at even or odd places that shows UTF-16
REPAIRABLE = 10  # letters of UTF-8 for each broken one: a damaged file, or two joined ones
# A letter of another alphabet within a word, and a capital after a small letter
MIXED = re.compile("[a-zA-Z][Ͱ-ۿ฀-๿]|[Ͱ-ۿ฀-๿][a-zA-Z]|[a-zа-яα-ω][À-ÞŁ-ŽА-ЯΑ-Ω]")

# Natural logarithms of probabilities
CAPITAL = -1.0
OFTEN = log(0.4)  # share of the most frequent Chinese and Korean characters, and of kana
PUNCTUATION, WIDE_MARK = -5.5, -5.0
LETTER, OTHER = -8.0, -9.0
CONTROL, BROKEN = -20.0, -20.0
MIXTURE = -4.0
CHARACTER, RARE, STRANGE, PRIVATE = -8.5, -13.0, -14.0, -30.0


def detect_encoding(body: bytes) -> str:
    """Return the most likely encoding of a body: "utf-8" for ASCII."""
    if wide := detect_utf_16(body):
        return wide
    if body.isascii():
        return "iso-2022-jp" if ISO_2022_JP.search(body, 0, SAMPLE) else "utf-8"
    sample = _take_sample(body)
    if _is_damaged_utf_8(sample):
        return "utf-8"
    scores = _score_all(sample)
    return max(scores, key=lambda name: scores[name])


def load_tables() -> None:
    """Make all tables."""
    detect_encoding("é".encode("latin-1"))


def detect_utf_16(body: bytes) -> str:
    """Return which UTF-16 the body's beginning is by its NUL bytes and its readable letters, or ""."""
    start = body[:SAMPLE]
    half = len(start) // 2
    if half and b"\0" in start:
        for name, zeros in (("utf-16le", start[1::2].count(0)), ("utf-16be", start[0::2].count(0))):
            if zeros > WIDE * half and zeros > 2 * (start.count(0) - zeros):
                text = decoders.decode_as(start[: 2 * half], name).rstrip(decoders.UNKNOWN)
                return name if "".join(text.split()).isprintable() else ""
    return ""


def _take_sample(body: bytes) -> bytes:
    """Return the beginning of the lines' parts from the first byte beyond ASCII on."""
    lines: list[bytes] = []
    length = 0
    for found in HIGH_LINE.finditer(body):
        lines.append(found[0][: SAMPLE - length])
        length += len(lines[-1]) + 1
        if length >= SAMPLE:
            break
    return b"\n".join(lines)


def _is_damaged_utf_8(sample: bytes) -> bool:
    text = sample.decode("utf-8", "replace")
    letters = sum(character > "\x7f" for character in text)
    broken = text.count(decoders.UNKNOWN)
    return letters > REPAIRABLE * broken


def _score_all(sample: bytes) -> dict[str, float]:
    """Return the score of each encoding in its best language."""
    best: dict[str, float] = {}
    for name in dict.fromkeys(name for names, _ in ALPHABETS for name, _ in names):
        text = decoders.decode_as(sample, name)
        mixed = MIXTURE * len(MIXED.findall(text))
        letters = _count_letters(text)
        for names, alphabet in ALPHABETS:
            prior = dict(names).get(name)
            if prior is not None:
                score = prior + mixed + _score_letters(letters, alphabet)
                best[name] = max(score, best.get(name, score))
    for name, frequent in CHARACTERS.items():
        text = decoders.decode_as(sample, name).rstrip(decoders.UNKNOWN)  # the sample may end within a character
        best[name] = _score_characters(_count_letters(text), name, frequent)
    return best


def _count_letters(text: str) -> Counter[str]:
    return Counter(character for character in text if character > "\x7f")


def _score_letters(letters: Counter[str], alphabet: str) -> float:
    weights = _weigh(alphabet)
    return sum(count * _judge_letter(letter, weights) for letter, count in letters.items())


def _judge_letter(letter: str, weights: dict[str, float]) -> float:
    if letter in weights:
        return weights[letter]
    small = letter.lower()
    if small in weights:
        return weights[small] + CAPITAL
    if letter in COMMON_PUNCTUATION:
        return PUNCTUATION
    if letter == decoders.UNKNOWN:
        return BROKEN
    if letter < "\xa0":
        return CONTROL
    return LETTER if letter.isalpha() else OTHER


def _score_characters(letters: Counter[str], name: str, frequent: str) -> float:
    weights, usual = _weigh(frequent), _usual_characters(name)
    return sum(count * _judge_character(letter, weights, usual) for letter, count in letters.items())


def _judge_character(letter: str, weights: dict[str, float], usual: frozenset[str]) -> float:
    if letter in weights:
        return weights[letter] + OFTEN
    if letter in WIDE_PUNCTUATION:
        return WIDE_MARK
    if letter in usual:
        return CHARACTER
    if letter == decoders.UNKNOWN:
        return BROKEN
    if "\ue000" <= letter <= "\uf8ff":
        return PRIVATE
    if "｡" <= letter <= "ﾟ":  # half-width kana, of one byte each
        return OTHER
    return RARE if "一" <= letter <= "鿿" or "가" <= letter <= "힣" else STRANGE


@cache
def _weigh(alphabet: str) -> dict[str, float]:
    """Return the logarithm of each letter's probability, which falls to a twentieth from the first to the last."""
    decay = 3 / len(alphabet)
    whole = log((1 - exp(-3)) / (1 - exp(-decay)))
    return {letter: -decay * rank - whole for rank, letter in enumerate(alphabet)}


@cache
def _usual_characters(name: str) -> frozenset[str]:
    """Return the characters of an encoding's first level, and kana if it is Japanese."""
    codec, first, last = WIDE_SETS[name]
    pairs = (bytes((lead, trail)) for lead in range(first, last + 1) for trail in range(0x40, 0xFF))
    characters = {text for text in (pair.decode(codec, "ignore") for pair in pairs) if len(text) == 1 and text > "\x7f"}
    return frozenset(characters | set(KANA if codec == "euc_jp" else ""))
