"""Sealed states with equal bytes and different texts."""

import asyncio
import base64
import os
import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from toolgate.server.auth.oauth_server.consent_requests import ConsentRequests
from toolgate.server.cli.commands import oauth_client
from toolgate.server.state.keys import file as key_file
from toolgate.server.state.keys.file import KeyFile
from toolgate.server.state.keys.sealed_state import LIFETIME, MAX_STATE, Sealer, SealError
from toolgate.server.state.keys.sealing_keys import KeyFolder

ALPHABET = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"


def sealed(seal: Sealer, padding: str) -> tuple[str, str]:
    """Return a value, and its sealed state, which ends in so much padding."""
    for length in range(60):
        value = "x" * length
        state = seal.seal(value, "me", "it")
        if state.endswith(padding) and not state.endswith(padding + "="):
            return value, state
    raise AssertionError(f"no length gives {padding!r}")


@pytest.mark.parametrize("padding", ["=", "=="])
def test_a_state_whose_unused_bits_were_changed_is_refused(tmp_path: Path, padding: str) -> None:
    seal = Sealer(KeyFile(tmp_path / "key"))
    value, state = sealed(seal, padding)
    assert seal.unseal(state, "me", "it") == value
    last = len(state) - len(padding) - 1
    others = [state[:last] + one + state[last + 1 :] for one in ALPHABET if one != state[last]]
    same = [one for one in others if base64.urlsafe_b64decode(one) == base64.urlsafe_b64decode(state)]
    assert len(same) == {"=": 3, "==": 15}[padding]
    for other in others:
        with pytest.raises(SealError):
            seal.unseal(other, "me", "it")


def test_a_state_in_the_other_alphabet_is_refused(tmp_path: Path) -> None:
    seal = Sealer(KeyFile(tmp_path / "key"))
    state = seal.seal("x" * 10_000, "me", "it")
    other = state.replace("-", "+").replace("_", "/")
    assert other != state
    with pytest.raises(SealError):
        seal.unseal(other, "me", "it")


def test_what_an_earlier_key_sealed_is_opened_for_as_long_as_it_may_come_back(tmp_path: Path) -> None:
    file = tmp_path / "keys" / "request-state"
    running, states = Sealer(KeyFile(file)), []
    for number in range(3):  # each key, and each process, knows those before
        states.append(running.seal(number, "me", "it"))
        key = file.read_bytes()
        asyncio.run(oauth_client.rotate_sealing_keys(KeyFolder(tmp_path / "keys"), drop_old=False))
        assert file.read_bytes() != key
    for seal in (running, Sealer(KeyFile(file))):
        assert [seal.unseal(state, "me", "it") for state in states] == [0, 1, 2]
        with pytest.raises(SealError):
            seal.unseal(states[0], "you", "it")
    before = sorted(file.parent.glob("request-state.before-*"))
    assert len(before) == 3 and {stat.S_IMODE(path.stat().st_mode) for path in before} == {0o600}
    last = states.pop()
    for path in before:  # as they are when that time is over: a server that has run since then knows it too
        os.rename(path, path.with_name("request-state.before-1"))
    key_file.rotate_key(file, LIFETIME)
    for seal in (running, Sealer(KeyFile(file))):
        with pytest.raises(SealError):
            seal.unseal(last, "me", "it")
    assert not (file.parent / "request-state.before-1").exists()


def test_with_the_old_keys_dropped_nothing_they_sealed_is_opened(tmp_path: Path) -> None:
    running = Sealer(KeyFile(tmp_path / "keys" / "request-state"))
    questions = ConsentRequests(Sealer(KeyFile(tmp_path / "keys" / "questions"), None), "https://tools.example")
    state = running.seal("it", "me", "it")
    question, _ = questions.seal("client_id=1")
    asyncio.run(oauth_client.rotate_sealing_keys(KeyFolder(tmp_path / "keys"), drop_old=False))
    assert running.unseal(state, "me", "it") == "it"
    assert (found := questions.open(question)) is not None and found.query == "client_id=1"
    asyncio.run(oauth_client.rotate_sealing_keys(KeyFolder(tmp_path / "keys"), drop_old=True))
    with pytest.raises(SealError):
        running.unseal(state, "me", "it")
    assert questions.open(question) is None
    assert running.unseal(running.seal("again", "me", "it"), "me", "it") == "again"
    assert sorted(os.listdir(tmp_path / "keys")) == ["questions", "request-state"]


def test_no_key_is_made_by_rotating_and_a_damaged_one_is_told(tmp_path: Path) -> None:
    asyncio.run(oauth_client.rotate_sealing_keys(KeyFolder(tmp_path / "keys"), drop_old=True))
    assert not (tmp_path / "keys").exists()
    (tmp_path / "keys").mkdir()
    (tmp_path / "keys" / "questions").write_bytes(b"short")
    with pytest.raises(OSError, match="is damaged"):
        asyncio.run(oauth_client.rotate_sealing_keys(KeyFolder(tmp_path / "keys"), drop_old=False))


def test_a_state_is_good_for_its_lifetime_and_no_longer(tmp_path: Path) -> None:
    now = began = 1_800_000_000.0
    seal = Sealer(KeyFile(tmp_path / "key"), now=lambda: now)
    state = seal.seal("it", "me", "it")
    for age in (0.0, LIFETIME - 0.001, LIFETIME):
        now = began + age
        assert seal.unseal(state, "me", "it") == "it"
    now = began + LIFETIME + 0.001
    with pytest.raises(SealError, match="has expired"):
        seal.unseal(state, "me", "it")


def test_a_state_without_a_lifetime_does_not_expire(tmp_path: Path) -> None:
    state = Sealer(KeyFile(tmp_path / "key"), None).seal("it", "me", "it")
    assert Sealer(KeyFile(tmp_path / "key"), None, now=lambda: 2.0**40).unseal(state, "me", "it") == "it"


def test_a_state_of_another_format_is_refused(tmp_path: Path) -> None:
    seal = Sealer(KeyFile(tmp_path / "key"))
    raw = base64.urlsafe_b64decode(seal.seal("it", "me", "it"))
    for other in (b"2" + raw[1:], raw[:1], b"", raw[:12], raw[:-1]):
        with pytest.raises(SealError):
            seal.unseal(base64.urlsafe_b64encode(other).decode(), "me", "it")


@pytest.mark.parametrize(
    "state", [None, 7, b"AAAA", ["AAAA"], "", "\u00e9", "x" * (MAX_STATE + 1)], ids=lambda state: repr(state)[:8]
)
def test_what_is_no_state_is_refused(tmp_path: Path, state: object) -> None:
    with pytest.raises(SealError):
        Sealer(KeyFile(tmp_path / "key")).unseal(state, "me", "it")


def test_servers_with_one_process_id_make_one_key(tmp_path: Path) -> None:
    with ThreadPoolExecutor(8) as servers:  # in containers on one volume
        for number in range(50):
            file = tmp_path / f"key-{number}"
            keys = set(servers.map(lambda _: key_file.load_or_create_key(file), range(8)))  # noqa: B023
            assert keys == {file.read_bytes()}
    assert [path for path in tmp_path.iterdir() if path.name.startswith(".")] == []
