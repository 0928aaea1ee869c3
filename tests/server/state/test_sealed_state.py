"""What is sealed, below the requests that carry it: where the bytes of a state are the same and its text is not."""

import base64
import os
import stat
from pathlib import Path

import pytest

from toolgate.server.auth import key_rotation
from toolgate.server.auth.oauth_server.consent_requests import Questions
from toolgate.server.protocol.errors import InvalidParams
from toolgate.server.state import key_file
from toolgate.server.state.sealed_state import LIFETIME, MAX_STATE, Seal

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


def test_what_an_earlier_key_sealed_is_opened_for_as_long_as_it_may_come_back(tmp_path: Path) -> None:
    file = tmp_path / "keys" / "request-state"
    running, states = Seal(file), []
    for number in range(3):  # each key, and each process, knows those before
        states.append(running.close(number, "me", "it"))
        key = file.read_bytes()
        key_rotation.rotate(tmp_path, drop_old=False)
        assert file.read_bytes() != key
    for seal in (running, Seal(file)):
        assert [seal.open(state, "me", "it") for state in states] == [0, 1, 2]
        with pytest.raises(InvalidParams):
            seal.open(states[0], "you", "it")
    before = sorted(file.parent.glob("request-state.before-*"))
    assert len(before) == 3 and {stat.S_IMODE(path.stat().st_mode) for path in before} == {0o600}
    last = states.pop()
    for path in before:  # as they are when that time is over: a server that has run since then knows it too
        os.rename(path, path.with_name("request-state.before-1"))
    key_file.rotate(file, LIFETIME)
    for seal in (running, Seal(file)):
        with pytest.raises(InvalidParams):
            seal.open(last, "me", "it")
    assert not (file.parent / "request-state.before-1").exists()


def test_with_the_old_keys_dropped_nothing_they_sealed_is_opened(tmp_path: Path) -> None:
    running = Seal(tmp_path / "keys" / "request-state")
    questions = Questions(Seal(tmp_path / "keys" / "questions", None), "https://tools.example")
    state = running.close("it", "me", "it")
    question, _ = questions.put("client_id=1")
    key_rotation.rotate(tmp_path, drop_old=False)
    assert running.open(state, "me", "it") == "it"
    assert (found := questions.find(question)) is not None and found.query == "client_id=1"
    key_rotation.rotate(tmp_path, drop_old=True)
    with pytest.raises(InvalidParams):
        running.open(state, "me", "it")
    assert questions.find(question) is None
    assert running.open(running.close("again", "me", "it"), "me", "it") == "again"
    assert sorted(os.listdir(tmp_path / "keys")) == ["questions", "request-state"]


def test_no_key_is_made_by_rotating_and_a_damaged_one_is_told(tmp_path: Path) -> None:
    key_rotation.rotate(tmp_path, drop_old=True)
    assert not (tmp_path / "keys").exists()
    (tmp_path / "keys").mkdir()
    (tmp_path / "keys" / "questions").write_bytes(b"short")
    with pytest.raises(OSError, match="is damaged"):
        key_rotation.rotate(tmp_path, drop_old=False)


def test_a_state_is_good_for_its_lifetime_and_no_longer(tmp_path: Path) -> None:
    now = began = 1_800_000_000.0
    seal = Seal(tmp_path / "key", now=lambda: now)
    state = seal.close("it", "me", "it")
    for age in (0.0, LIFETIME - 0.001, LIFETIME):
        now = began + age
        assert seal.open(state, "me", "it") == "it"
    now = began + LIFETIME + 0.001
    with pytest.raises(InvalidParams, match="has expired"):
        seal.open(state, "me", "it")


def test_a_state_without_a_lifetime_does_not_expire(tmp_path: Path) -> None:
    state = Seal(tmp_path / "key", None).close("it", "me", "it")
    assert Seal(tmp_path / "key", None, now=lambda: 2.0**40).open(state, "me", "it") == "it"


def test_a_state_of_another_format_is_refused(tmp_path: Path) -> None:
    seal = Seal(tmp_path / "key")
    raw = base64.urlsafe_b64decode(seal.close("it", "me", "it"))
    for other in (b"2" + raw[1:], raw[:1], b"", raw[:12], raw[:-1]):
        with pytest.raises(InvalidParams):
            seal.open(base64.urlsafe_b64encode(other).decode(), "me", "it")


@pytest.mark.parametrize(
    "state", [None, 7, b"AAAA", ["AAAA"], "", "\u00e9", "x" * (MAX_STATE + 1)], ids=lambda state: repr(state)[:8]
)
def test_what_is_no_state_is_refused(tmp_path: Path, state: object) -> None:
    with pytest.raises(InvalidParams):
        Seal(tmp_path / "key").open(state, "me", "it")
