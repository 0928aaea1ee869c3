"""Match the lines of two texts by those that each has once, as Bram Cohen's patience diff does."""

from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence


def match_unique(before: Sequence[str], after: Sequence[str]) -> list[tuple[int, int]]:
    """Return the positions of the most lines that both have once and in the same order. Takes n log n steps."""
    places = {line: at for at, line in enumerate(after)}
    counts, others = Counter(before), Counter(after)
    pairs = [
        (at, places[line]) for at, line in enumerate(before) if line in places and counts[line] == others[line] == 1
    ]
    ends = list[int]()  # the least place in `after` at which a chain of this length ends
    chains = list[tuple[int, int]]()  # of each pair: the length of its chain, and its place in `after`
    for _, place in pairs:
        length = bisect_left(ends, place)
        ends[length : length + 1] = [place]
        chains.append((length, place))
    wanted, limit = len(ends) - 1, len(after)
    matched = list[tuple[int, int]]()
    for (length, place), pair in zip(reversed(chains), reversed(pairs), strict=True):
        if length == wanted and place < limit:
            matched.append(pair)
            wanted, limit = wanted - 1, place
    return matched[::-1]
