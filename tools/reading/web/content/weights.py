"""Weigh the signs of a block.

The weights are a logistic regression over the blocks of 1,120 pages whose content is known: readability's 130 articles
and trafilatura's 990 pages with strings. `python -m tests.bench.gold.fit` finds them again, after a change of the signs
or of the preparation too. Learnt on one half of the pages, they reach the same figures on the other to 0.005.
"""

import math
from collections.abc import Mapping

# A weight says how much a sign of 1 speaks for content. `signs.py` has the signs by name.
WEIGHTS: Mapping[str, float] = {
    "constant": -2.05,
    "text vote": 1.23,
    "point vote": 2.07,
    "links": -0.4,
    "links with point vote": -1.55,
    "length": 0.71,
    "small": 2.45,
    "sentence": 0.69,
    "first heading": -1.15,
    "introduction": 1.18,
    "caption": -0.44,
    "stamp": -0.5,
    "in footer": -1.91,
    "in table": 1.25,
    "in aside": -1.67,
    "in form": -0.74,
    "in nav": -1.24,
    "in li": 0.22,
    "in figure": -0.21,
    "in hidden": -4.16,
    "noise": -0.79,
    "noise around": -0.46,
    "text votes around": -0.78,
    "text votes further around": 0.32,
    "point votes around": -1.41,
    "links around": -1.49,
    "text votes near": 1.48,
    "after": -0.43,
    "no vote": -0.24,
    "no vote, votes agree": -1.7,
    "no vote, after": -0.91,
    "no vote, in li": 0.26,
}
THRESHOLD = 0.47  # a lower one keeps more of the content and more of what is around it


def weigh(signs: Mapping[str, float], weights: Mapping[str, float] = WEIGHTS) -> float:
    """Return how likely a block is content, from 0 to 1."""
    total = sum(weights[name] * value for name, value in signs.items())
    return 1 / (1 + math.exp(-max(-50.0, min(50.0, total))))
