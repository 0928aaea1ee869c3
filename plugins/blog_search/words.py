"""Rank texts by the words, and parts of words, that they share with a query, by scikit-learn's TF-IDF and cosine.

scikit-learn takes a second to import, so the first search imports it.
"""

from collections.abc import Sequence
from typing import Any

from toolgate.tools import ToolError


class Words:
    """An index of `texts`. Raises ToolError where scikit-learn is not installed."""

    def __init__(self, texts: Sequence[str]) -> None:
        try:
            from sklearn.feature_extraction.text import TfidfVectorizer  # type: ignore[import-untyped]
        except ImportError:
            raise ToolError("searching needs scikit-learn: pip install scikit-learn") from None
        views = (
            TfidfVectorizer(sublinear_tf=True, strip_accents="unicode"),
            # Runs of letters within words: other endings, slips of the pen, and languages without spaces.
            TfidfVectorizer(sublinear_tf=True, strip_accents="unicode", analyzer="char_wb", ngram_range=(3, 4)),
        )
        self._count = len(texts)
        self._views: list[tuple[Any, Any]] = []
        for view in views:
            try:
                self._views.append((view, view.fit_transform(texts)))
            except ValueError:  # not one word, or not one letter, in all of them
                continue

    def scores(self, query: str) -> list[float]:
        """The mean of both similarities for each text."""
        from sklearn.metrics.pairwise import cosine_similarity  # type: ignore[import-untyped]

        means = [0.0] * self._count
        for view, matrix in self._views:
            (near,) = cosine_similarity(view.transform([query]), matrix)
            means = [mean + float(score) / len(self._views) for mean, score in zip(means, near, strict=True)]
        return means
