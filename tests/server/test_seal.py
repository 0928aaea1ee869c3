"""What is sealed, below the requests that carry it: where the bytes of a state are the same and its text is not."""

import base64
from pathlib import Path

import pytest

from toolgate.server.errors import InvalidParams
from toolgate.server.seal import Seal

ALPHABET = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"


def sealed(seal: Seal, padding: str) -> tuple[str, str]:
    """A value, and its state, which ends in so much padding."""
    for length in range(60):
        value = "x" * length
        state = seal.close(value, "me", "it")
        if state.endswith(padding) and not state.endswith(padding + "="):
            return value, state
    raise AssertionError(f"no length gives {padding!r}")


@pytest.mark.parametrize("padding", ["=", "=="])
def test_a_state_whose_unused_bits_were_changed_is_refused(tmp_path: Path, padding: str) -> None:
    seal = Seal(tmp_path / "key")
    value, state = sealed(seal, padding)
    assert seal.open(state, "me", "it") == value
    last = len(state) - len(padding) - 1
    others = [state[:last] + one + state[last + 1 :] for one in ALPHABET if one != state[last]]
    same = [one for one in others if base64.urlsafe_b64decode(one) == base64.urlsafe_b64decode(state)]
    assert len(same) == {"=": 3, "==": 15}[padding]
    for other in others:
        with pytest.raises(InvalidParams):
            seal.open(other, "me", "it")


def test_a_state_in_the_other_alphabet_is_refused(tmp_path: Path) -> None:
    seal = Seal(tmp_path / "key")
    state = seal.close("x" * 10_000, "me", "it")
    other = state.replace("-", "+").replace("_", "/")
    assert other != state
    with pytest.raises(InvalidParams):
        seal.open(other, "me", "it")
