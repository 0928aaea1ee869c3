"""Find the weights of tools/reading/web/content/weights.py: a logistic regression over the blocks of the gold sets.

Run `python -m tests.bench.gold.fit --readability FOLDER --trafilatura FOLDER`. It prints the weights of each half of
the pages and of all, and the figures of each half with the weights of the other, on which they were not learnt.
"""

import argparse
import importlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from tests.bench.gold import scores, sets
from tests.bench.gold.scores import Share
from tests.bench.gold.sets import ArticlePage, GoldPage, StringsPage
from tests.bench.gold.text import element_text
from toolgate.tools.reading.encodings.body import decode_body
from toolgate.tools.reading.web import convert
from toolgate.tools.reading.web.content import choice, signs, text_vote
from toolgate.tools.reading.web.content.blocks import PageBlock, divide
from toolgate.tools.reading.web.content.documentation import find_generator, is_documentation
from toolgate.tools.reading.web.content.weights import weigh
from toolgate.tools.reading.web.html.edit import apply_marks
from toolgate.tools.reading.web.html.parse import parse_html
from toolgate.tools.reading.web.html.prepare import prepare

ARTICLE_WEIGHT = 36  # of all blocks of an article, about the strings of three pages
Weights = Mapping[str, float]


@dataclass(frozen=True)
class Example:
    """A block's signs, whether it is content, and how much it counts."""

    signs: Mapping[str, float]
    is_content: bool
    weight: float


@dataclass(frozen=True)
class LearningPage:
    """A page, the text that trafilatura finds in it, and its blocks as examples."""

    page: GoldPage
    text: str
    examples: Sequence[Example]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.gold.fit", description=__doc__)
    parser.add_argument("--readability", type=Path, required=True)
    parser.add_argument("--trafilatura", type=Path, required=True)
    options = parser.parse_args()
    gold = [*sets.read_articles(options.readability), *sets.read_strings(options.trafilatura)]
    pages = [read_page(page) for page in gold]
    halves = [fit([page for page in pages if page.page.half == half]) for half in (0, 1)]
    whole = fit(pages)
    print(f"{'sign':26}{'half 0':>8}{'half 1':>8}{'all':>8}")
    for name, weight in whole.items():
        print(f"{name:26}{halves[0][name]:8.2f}{halves[1][name]:8.2f}{weight:8.2f}")
    for half in (0, 1):
        figures = score([page for page in pages if page.page.half == half], halves[1 - half])
        print(f"half {half} with the weights of half {1 - half}: {figures}")
    print(f"all with the weights of all: {score(pages, whole)}")


def read_page(page: GoldPage) -> LearningPage:
    body, _ = _prepare(page)
    if body is None:
        return LearningPage(page, "", [])
    blocks = divide(body)
    text = text_vote.extract_text(body)
    evidence = signs.gather_evidence(blocks, text_vote.find_shares(text, blocks.blocks))
    labels = label_blocks(page, blocks.blocks)
    examples = [
        Example(described, share > 0.5, weight)
        for described, (share, weight) in zip(signs.describe(evidence), labels, strict=True)
        if weight
    ]
    return LearningPage(page, text, examples)


def _prepare(page: GoldPage) -> tuple[Any, str]:
    tree = parse_html(convert.clean_text(decode_body(page.body, "text/html", is_html=True).text))
    return (None, "") if tree is None else (prepare(tree), find_generator(tree))


def label_blocks(page: GoldPage, blocks: Sequence[PageBlock]) -> list[tuple[float, float]]:
    """Return by block how much of it is content, and its weight."""
    match page:
        case ArticlePage():
            total = sum(len(block.text) for block in blocks) or 1
            shares = text_vote.find_shares(page.text, blocks)
            return [
                (share, ARTICLE_WEIGHT * len(block.text) / total) for share, block in zip(shares, blocks, strict=True)
            ]
        case StringsPage():
            wanted, unwanted = _find_strings(page.wanted, blocks), _find_strings(page.unwanted, blocks)
            return [(float(more > less), abs(more - less)) for more, less in zip(wanted, unwanted, strict=True)]
        case _:
            raise TypeError(page)


def _find_strings(strings: Iterable[str], blocks: Sequence[PageBlock]) -> list[float]:
    """Return how many of the strings each block has; one in several blocks is divided among them."""
    counts = [0.0] * len(blocks)
    for string in strings:
        letters = "".join(string.split())
        places = [number for number, block in enumerate(blocks) if letters in block.text]
        for number in places:
            counts[number] += 1 / len(places)
    return counts


def fit(pages: Iterable[LearningPage]) -> Weights:
    examples = [example for page in pages for example in page.examples]
    names = [name for name in examples[0].signs if name != "constant"]
    linear: Any = importlib.import_module("sklearn.linear_model")
    model = linear.LogisticRegression(max_iter=2_000)
    rows = [[example.signs[name] for name in names] for example in examples]
    model.fit(rows, [example.is_content for example in examples], [example.weight for example in examples])
    found = {"constant": float(model.intercept_[0]), **dict(zip(names, map(float, model.coef_[0]), strict=True))}
    return {name: round(weight, 2) for name, weight in found.items()}


def score(pages: Iterable[LearningPage], weights: Weights) -> str:
    overlaps: list[scores.Overlap] = []
    wanted = unwanted = Share()
    for page in pages:
        text = _read(page, weights)
        match page.page:
            case ArticlePage() as article:
                overlaps.append(scores.compare_article(article, text))
            case StringsPage() as strings:
                found, noise = scores.compare_strings(strings, text)
                wanted, unwanted = wanted + found, unwanted + noise
            case _:
                raise TypeError(page.page)
    mean = fmean(overlap.f1 for overlap in overlaps)
    return f"F1 {mean:.3f}, wanted {float(wanted):.3f}, unwanted {float(unwanted):.3f}"


def _read(page: LearningPage, weights: Weights) -> str:
    body, generator = _prepare(page.page)
    if body is None:
        return ""
    blocks = divide(body)
    evidence = signs.gather_evidence(blocks, text_vote.find_shares(page.text, blocks.blocks))
    values = [weigh(described, weights) for described in signs.describe(evidence)]
    stays = choice.choose_blocks(evidence, values, is_documentation(body, blocks, generator))
    choice.cut_blocks(blocks, stays)
    apply_marks(body)
    return element_text(body)


if __name__ == "__main__":
    main()
