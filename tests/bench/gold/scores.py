"""Compare an answer with gold text: 4-grams of articles, strings, and the parts of a manual's page."""

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from tests.bench.gold.sets import ArticlePage, ManualPage, StringsPage
from tests.bench.gold.text import join_words, letters

GRAM = 4  # words


@dataclass(frozen=True)
class Overlap:
    """How much of the gold is in the answer, and of the answer in the gold."""

    recall: float
    precision: float

    @property
    def f1(self) -> float:
        both = self.recall + self.precision
        return 2 * self.recall * self.precision / both if both else 0.0


@dataclass(frozen=True)
class Share:
    """How many of a set's parts an answer has."""

    found: int = 0
    total: int = 0

    def __add__(self, other: "Share") -> "Share":
        return Share(self.found + other.found, self.total + other.total)

    def __float__(self) -> float:
        return self.found / self.total if self.total else 0.0

    def __str__(self) -> str:
        return f"{self.found:,}/{self.total:,}"


def compare_article(page: ArticlePage, text: str) -> Overlap:
    gold, answer = _grams(page.text), _grams(text)
    common = (gold & answer).total()
    return Overlap(_share(common, gold.total()), _share(common, answer.total()))


def compare_strings(page: StringsPage, text: str) -> tuple[Share, Share]:
    """Return the shares of the wanted and of the unwanted strings."""
    answer = join_words(text)
    return _count(page.wanted, answer), _count(page.unwanted, answer)


def compare_manual(page: ManualPage, text: str) -> dict[str, Share]:
    """Return the share of each kind of part, by letters and digits alone."""
    lines = [line for line in map(letters, text.splitlines()) if line]
    whole = "".join(lines)
    around = {letters(link) for link in page.around}
    return {
        "pre": Share(sum(_has_lines(code, lines) for code in page.codes), len(page.codes)),
        "cells": _count_letters(page.cells, whole),
        "paragraphs": _count_letters(page.paragraphs, whole),
        "beginnings": _count_letters(page.beginnings, whole),
        "around": Share(sum(letters(link) in around & set(lines) for link in page.around), len(page.around)),
    }


def _share(common: int, total: int) -> float:
    return common / total if total else 0.0


def _grams(text: str) -> Counter[tuple[str, ...]]:
    words = re.findall(r"\w+", text.lower())
    length = min(GRAM, max(1, len(words)))  # some pages have three words
    return Counter(zip(*(words[start:] for start in range(length)), strict=False))


def _count(strings: Sequence[str], answer: str) -> Share:
    return Share(sum(join_words(string) in answer for string in strings), len(strings))


def _count_letters(parts: Sequence[str], whole: str) -> Share:
    return Share(sum(letters(part) in whole for part in parts), len(parts))


def _has_lines(code: str, lines: Sequence[str]) -> bool:
    """Return whether each line of the code is a line of the answer, in order."""
    wanted = [line for line in map(letters, code.splitlines()) if line]
    starts = [at for at, line in enumerate(lines) if wanted and line == wanted[0]]
    return not wanted or any(_follow(wanted, lines[start:]) for start in starts)


def _follow(wanted: Sequence[str], lines: Sequence[str]) -> bool:
    rest = iter(lines)
    return all(line in rest for line in wanted)
