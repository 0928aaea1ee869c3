"""Describe each block of a page by signs: numbers that `weights.WEIGHTS` weighs."""

import math
from collections.abc import Sequence

import msgspec

from toolgate.tools.reading.web.content import names
from toolgate.tools.reading.web.content.blocks import PageBlock, PageBlocks, RangeSums
from toolgate.tools.reading.web.content.places import HIDDEN, TAGS, Place, find_places
from toolgate.tools.reading.web.content.points_vote import vote_by_points

SENTENCE_ENDS = tuple(".!?…。！？:;”\"’'»)؟۔।")
SMALL = 12  # letters
HALF = 0.5  # of a block's letters: a vote for it
NO_VOTE = 0.1
NEIGHBOURS = 2  # blocks before and after
MAX_NOISE = 3  # names around that count


class Evidence(msgspec.Struct):
    """The blocks of a page, and by block: the share of its letters that trafilatura finds, its vote by points, and its
    place."""

    page: PageBlocks
    text_votes: list[float]
    point_votes: list[float]
    places: list[Place]

    def sum_letters(self, votes: Sequence[float] | None = None) -> RangeSums:
        """Return the sums of the blocks' letters, or of those with a vote."""
        blocks = self.page.blocks
        if votes is None:
            return RangeSums(len(block.text) for block in blocks)
        return RangeSums(len(block.text) * vote for block, vote in zip(blocks, votes, strict=True))


def gather_evidence(page: PageBlocks, text_votes: list[float]) -> Evidence:
    return Evidence(page, text_votes, vote_by_points(page), find_places(page))


def describe(evidence: Evidence) -> list[dict[str, float]]:
    """Return the signs of each block by name."""
    if not evidence.page.blocks:
        return []
    description = PageDescription(evidence)
    return [description.describe(number) for number in range(len(evidence.page.blocks))]


class PageDescription:
    """What the signs of each block need to know of its page."""

    def __init__(self, evidence: Evidence) -> None:
        self._evidence = evidence
        self._letters = evidence.sum_letters()
        self._links = RangeSums(block.link_letters for block in evidence.page.blocks)
        self._text = evidence.sum_letters(evidence.text_votes)
        self._points = evidence.sum_letters(evidence.point_votes)
        votes = list(zip(evidence.text_votes, evidence.point_votes, strict=True))
        agreed = [number for number, (text, points) in enumerate(votes) if min(text, points) >= HALF]
        self._first = agreed[0] if agreed else 0
        self._last = agreed[-1] if agreed else len(votes) - 1
        both = evidence.sum_letters([float(min(vote) >= HALF) for vote in votes]).total
        either = evidence.sum_letters([float(max(vote) >= HALF) for vote in votes]).total
        self._agreement = both / either if either else 0.0
        self._names: dict[str, dict[str, float]] = {}

    def describe(self, number: int) -> dict[str, float]:
        block, place = self._evidence.page.blocks[number], self._evidence.places[number]
        return {
            "constant": 1.0,
            **self._describe_text(number, block),
            **self._describe_names(block, number < self._first),
            **{f"in {tag}": float(tag in place.tags) for tag in (*TAGS, HIDDEN)},
            "noise": float(place.noise & 1),
            "noise around": float(min(MAX_NOISE, place.noise.bit_count())),
            **self._describe_surroundings(number, block, place),
        }

    def _describe_text(self, number: int, block: PageBlock) -> dict[str, float]:
        letters = len(block.text)
        links = block.link_letters / letters if letters else 0.0
        points = self._evidence.point_votes[number]
        return {
            "text vote": self._evidence.text_votes[number],
            "point vote": points,
            "links": links,
            "links with point vote": links * points,
            "length": math.log(1 + letters / 5),
            "small": float(letters < SMALL),
            "sentence": float(block.text.endswith(SENTENCE_ENDS)),
            "first heading": float(block.heading_level == 1),
        }

    def _describe_names(self, block: PageBlock, is_before: bool) -> dict[str, float]:
        classes = names.names_of(block)
        if classes not in self._names:
            words = names.split_words(classes)
            self._names[classes] = {
                "introduction": float(names.INTRODUCTION.search(words) is not None),
                "caption": float(names.CAPTION.search(words) is not None),
                "stamp": float(names.STAMP.search(words) is not None),
            }
        described = self._names[classes]
        return {**described, "introduction": described["introduction"] * is_before}

    def _describe_surroundings(self, number: int, block: PageBlock, place: Place) -> dict[str, float]:
        region = block.region
        letters = self._letters.over(region) or 1.0
        text = self._text.over(region) / letters
        votes = self._evidence.text_votes
        near = votes[max(0, number - NEIGHBOURS) : number + NEIGHBOURS + 1]
        after = float(number > self._last)
        no_vote = float(votes[number] < NO_VOTE and text < NO_VOTE)
        further = region.parent or region
        return {
            "text votes around": text,
            "text votes further around": self._text.over(further) / (self._letters.over(further) or 1.0),
            "point votes around": self._points.over(region) / letters,
            "links around": self._links.over(region) / letters,
            "text votes near": sum(near) / len(near),
            "after": after,
            "no vote": no_vote,
            "no vote, votes agree": no_vote * self._agreement,
            "no vote, after": no_vote * after,
            "no vote, in li": no_vote * place.is_in("li"),
        }
