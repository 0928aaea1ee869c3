"""Fixtures: trees of the whole program, which the garbage collector passes over."""

import gc
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True, scope="module")
def uncollected_trees() -> Iterator[None]:
    """Keep the collector off the 800,000 nodes of the program: it takes three quarters of the time to parse them."""
    gc.disable()
    yield
    gc.freeze()  # what is cached stays
    gc.enable()
