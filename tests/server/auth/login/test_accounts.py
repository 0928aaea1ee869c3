"""Accounts, the pairing code and login sessions: who may sign in, and how slowly secrets can be guessed."""

import asyncio
import contextlib
import itertools
import logging
import re
import statistics
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from tests.server.auth.sign_in_server import sign_in_server
from toolgate.server.auth.login import accounts as accounts_module
from toolgate.server.auth.login.accounts import Accounts, PairingCode, Person, SignInError, normalize_name
from toolgate.server.auth.login.sessions import LIFETIME, LoginSessions
from toolgate.server.auth.login.throttle import (
    UNLIMITED,
    Backoff,
    GuessLimiter,
    Throttle,
    ThrottledError,
)
from toolgate.server.base.bus.memory_keys import MIN_SWEEP, MemoryKeys
from toolgate.server.state.rows import people as people_rows
from toolgate.server.state.sqlite.store import SqliteStore
from toolgate.server.state.store import Store

GOOD = "correct horse"


class Time:
    """A clock set by hand."""

    def __init__(self) -> None:
        self.now = 1_000_000.0

    def __call__(self) -> float:
        return self.now


def with_store(folder: Path, body: Callable[[Store], Coroutine[Any, Any, Any]]) -> Any:
    async def run() -> Any:
        store = SqliteStore(folder / "state")
        try:
            return await asyncio.wait_for(body(store), 60)
        finally:
            store.close()

    return asyncio.run(run())


def test_an_added_account_signs_in_with_its_password_only(tmp_path: Path) -> None:
    async def body(store: Store) -> None:
        accounts = Accounts(store)
        ada = await accounts.add("Ada", GOOD)
        assert await accounts.verify_password("ada", GOOD, "192.0.2.1") == ada
        assert ada.name == "ada"
        assert await accounts.verify_password("ada", GOOD + "!", "192.0.2.1") is None
        assert await accounts.verify_password("ada", "", "192.0.2.1") is None
        assert await accounts.verify_password("bob", GOOD, "192.0.2.1") is None
        assert await accounts.verify_password("\0", GOOD, "192.0.2.1") is None
        assert await accounts.verify_password("ada", "\ud800", "192.0.2.1") is None

    with_store(tmp_path, body)


def test_a_password_is_kept_as_argon2id_and_nowhere_else(tmp_path: Path) -> None:
    async def body(store: Store) -> None:
        await Accounts(store).add("ada", GOOD)

    with_store(tmp_path, body)
    kept = b"".join(path.read_bytes() for path in (tmp_path / "state").iterdir() if path.is_file())
    assert b"$argon2id$" in kept
    assert GOOD.encode() not in kept


@pytest.mark.parametrize("spelling", ["ADA", " ada ", "Ａｄａ"])
def test_a_name_has_one_spelling(spelling: str, tmp_path: Path) -> None:
    async def body(store: Store) -> None:
        accounts = Accounts(store)
        ada = await accounts.add("ada", GOOD)
        assert await accounts.verify_password(spelling, GOOD, "192.0.2.1") == ada
        with pytest.raises(SignInError, match="the account 'ada' already exists"):
            await accounts.add(spelling, GOOD)

    with_store(tmp_path, body)


@pytest.mark.parametrize("name", ["", " ", "a b", "a\nb", "a/b", "<b>", "a\u202eb", "x" * 65, "a\u200bb", "a'b"])
def test_a_name_that_could_be_mistaken_is_refused(name: str) -> None:
    with pytest.raises(SignInError):
        normalize_name(name)


@pytest.mark.parametrize(
    "password",
    ["", "nul\0 in it", "seven77", "adalovelace", "ADALOVELACE", "aaaaaaaaaaa", "x1" * 513, "\ud800 lone half"],
)
def test_a_password_that_is_none_is_refused(password: str, tmp_path: Path) -> None:
    async def body(store: Store) -> None:
        accounts = Accounts(store)
        with pytest.raises(SignInError, match="a password"):
            await accounts.add("adalovelace", password)
        assert await accounts.is_empty()

    with_store(tmp_path, body)


def test_a_password_is_the_same_however_its_accents_are_typed(tmp_path: Path) -> None:
    async def body(store: Store) -> None:
        accounts = Accounts(store)
        ada = await accounts.add("ada", "caf\u00e9 caf\u00e9")
        assert await accounts.verify_password("ada", "cafe\u0301 cafe\u0301", "192.0.2.1") == ada

    with_store(tmp_path, body)


def test_accounts_are_listed_removed_and_given_new_passwords(tmp_path: Path) -> None:
    async def body(store: Store) -> None:
        accounts = Accounts(store, now=lambda: 5.0)
        ada = await accounts.add("ada", GOOD)
        await accounts.add("bob", GOOD)
        assert await accounts.list_accounts() == [("ada", 5.0), ("bob", 5.0)]
        assert await accounts.set_password("ADA", "another horse") == ada
        assert await accounts.verify_password("ada", GOOD, "192.0.2.1") is None
        assert await accounts.verify_password("ada", "another horse", "192.0.2.1") == ada
        assert await accounts.remove("ada") == ada
        assert await accounts.verify_password("ada", "another horse", "192.0.2.1") is None
        assert await accounts.list_accounts() == [("bob", 5.0)]
        for refused in (accounts.remove("ada"), accounts.set_password("ada", GOOD)):
            with pytest.raises(SignInError, match="there is no account 'ada'"):
                await refused

    with_store(tmp_path, body)


def test_an_account_with_a_removed_name_is_another_person(tmp_path: Path) -> None:
    async def body(store: Store) -> None:
        accounts = Accounts(store)
        before = await accounts.add("ada", GOOD)
        await accounts.remove("ada")
        after = await accounts.add("ada", GOOD)
        assert before.subject != after.subject

        def known(connection: Any) -> list[bool]:
            return [people_rows.has_account(connection, person.issuer, person.subject) for person in (before, after)]

        assert await store.transact(known) == [False, True]

    with_store(tmp_path, body)


def test_sec_17_a_name_is_guessed_ever_more_slowly(tmp_path: Path) -> None:
    clock = Time()

    async def body(store: Store) -> list[float]:
        accounts = Accounts(store, MemoryKeys(clock))
        await accounts.add("ada", GOOD)
        waits = []
        for attempt in range(40):
            try:
                assert await accounts.verify_password("ada", f"guess {attempt}", f"192.0.2.{attempt}") is None
                waits.append(0.0)
            except ThrottledError as error:
                waits.append(error.wait)
                clock.now += error.wait
        return waits

    waits = with_store(tmp_path, body)
    assert waits[:5] == [0.0] * 5
    asked = [wait for wait in waits if wait]
    assert asked[:7] == [1, 2, 4, 8, 16, 32, 60]
    assert set(asked[7:]) == {60}


def test_sec_17_an_address_is_slowed_down_whatever_names_it_tries(tmp_path: Path) -> None:
    clock = Time()

    async def body(store: Store) -> None:
        accounts = Accounts(store, MemoryKeys(clock))
        for attempt in range(10):
            await accounts.verify_password(f"name{attempt}", "a guess", "2001:db8::" + str(attempt))  # one network
        with pytest.raises(ThrottledError):
            await accounts.verify_password("another", "a guess", "2001:db8::ffff")
        assert await accounts.verify_password("another", "a guess", "2001:db8:0:1::1") is None

    with_store(tmp_path, body)


def test_sec_17_guesses_at_a_name_do_not_lock_its_owners_browser_out(tmp_path: Path) -> None:
    clock = Time()

    async def body(store: Store) -> None:
        accounts = Accounts(store, MemoryKeys(clock))
        ada = await accounts.add("ada", GOOD)
        device = await accounts.issue_device_cookie(ada)
        with pytest.raises(ThrottledError):
            for attempt in range(6):
                await accounts.verify_password("ada", "a guess", f"192.0.2.{attempt}")
        for held in (
            "",
            "A" * 43,
            device[:-2] + "AA",
            "\u00e9" * 43,
            await accounts.issue_device_cookie(Person("i", "1", "ada")),
        ):
            with pytest.raises(ThrottledError):
                await accounts.verify_password("ada", GOOD, "198.51.100.1", held)
        assert await accounts.verify_password("ada", GOOD, "198.51.100.1", device) == ada
        with pytest.raises(ThrottledError):  # what let her in does not let the others in
            await accounts.verify_password("ada", GOOD, "203.0.113.1")
        with pytest.raises(ThrottledError):  # nor is a stolen one good for more than a few guesses
            for _ in range(6):
                await accounts.verify_password("ada", "a guess", "198.51.100.1", device)

    with_store(tmp_path, body)


def test_sec_17_new_networks_of_one_block_do_not_keep_a_newcomer_out(tmp_path: Path) -> None:
    with sign_in_server(tmp_path, trusted_proxies=("127.0.0.1",)) as server:
        server.add()
        nets = itertools.count()  # times an odd number: all over the /48
        for turn in range(4):
            for _ in range(60):
                sprayer = server.browser(x_forwarded_for=f"2001:db8:1:{next(nets) * 251 % 65_536:x}::1")
                assert sprayer.sign_in(name=f"name{next(nets)}").status in (403, 429)
            assert server.browser(x_forwarded_for=f"2001:db8:2:{turn}::1").sign_in().status == 303


def test_sec_17_an_address_one_signed_in_from_is_not_kept_out_by_others(tmp_path: Path) -> None:
    clock = Time()

    async def body(store: Store) -> None:
        accounts = Accounts(store, MemoryKeys(clock))
        ada = await accounts.add("ada", GOOD)
        assert await accounts.verify_password("ada", GOOD, "2001:db8:1:1::1") == ada
        for attempt in range(200):  # from everywhere, at her name and at others'
            clock.now += 0.1
            with contextlib.suppress(ThrottledError):
                await accounts.verify_password(
                    f"name{attempt}" if attempt % 2 else "ada", "a guess", f"10.{attempt}.0.1"
                )
        with pytest.raises(ThrottledError):
            await accounts.verify_password("ada", GOOD, "198.51.100.1")
        assert await accounts.verify_password("ada", GOOD, "2001:db8:1:1::2") == ada
        with pytest.raises(ThrottledError):  # others of her household can't guess for long either
            for _ in range(6):
                await accounts.verify_password("ada", "a guess", "2001:db8:1:1::3")

    with_store(tmp_path, body)


def test_sec_17_signing_in_oneself_gains_no_guesses_at_others(tmp_path: Path) -> None:
    async def body(store: Store) -> int:
        accounts = Accounts(store, MemoryKeys(Time()))
        await accounts.add("eve", GOOD)
        guesses = 0
        with pytest.raises(ThrottledError):
            for guesses in range(50):
                if guesses % 4 == 0:
                    await accounts.verify_password("eve", GOOD, "192.0.2.1")
                await accounts.verify_password(f"name{guesses}", "a guess", "192.0.2.1")
        return guesses

    assert with_store(tmp_path, body) == 10


def test_a_sign_in_takes_back_earlier_mistypes_of_its_address(tmp_path: Path) -> None:
    async def body(store: Store) -> None:
        accounts = Accounts(store, MemoryKeys(Time()))
        for number in range(12):
            name = f"name{number}"
            person = await accounts.add(name, GOOD)
            for _ in range(3):
                assert await accounts.verify_password(name, "a slip", "192.0.2.1") is None
            assert await accounts.verify_password(name, GOOD, "192.0.2.1") == person

    with_store(tmp_path, body)


def test_successful_sign_ins_slow_down_no_other_sign_in(tmp_path: Path) -> None:
    async def body(store: Store) -> None:
        accounts = Accounts(store, MemoryKeys(Time()))
        ada = await accounts.add("ada", GOOD)
        for number in range(accounts_module.TOTAL_BACKOFF.free + 20):
            assert await accounts.verify_password("ada", GOOD, f"10.{number}.0.1") == ada
        assert await accounts.verify_password("bob", "a guess", "192.0.2.1") is None

    with_store(tmp_path, body)


def test_a_device_is_known_no_more_when_the_password_has_changed(tmp_path: Path) -> None:
    async def body(store: Store) -> None:
        accounts = Accounts(store, MemoryKeys(Time()))
        device = await accounts.issue_device_cookie(await accounts.add("ada", GOOD))
        await accounts.set_password("ada", "another horse")
        with pytest.raises(ThrottledError):
            for _ in range(6):
                await accounts.verify_password("ada", "a guess", "192.0.2.1")
        with pytest.raises(ThrottledError):
            await accounts.verify_password("ada", "another horse", "192.0.2.1", device)

    with_store(tmp_path, body)


def test_sec_17_where_addresses_are_unknown_one_does_not_lock_out_all(tmp_path: Path) -> None:
    async def body(store: Store) -> None:
        accounts = Accounts(store, MemoryKeys(Time()))
        ada = await accounts.add("ada", GOOD)
        for attempt in range(11):
            assert await accounts.verify_password(f"name{attempt}", "a guess", "") is None
        assert await accounts.verify_password("ada", GOOD, "") == ada

    with_store(tmp_path, body)


def test_sec_17_many_guesses_at_once_gain_nothing(tmp_path: Path) -> None:
    async def body(store: Store) -> None:
        accounts = Accounts(store, MemoryKeys(Time()))
        await accounts.add("ada", GOOD)
        guesses = [accounts.verify_password("ada", f"guess {n}", f"198.51.100.{n}") for n in range(50)]
        outcomes = await asyncio.gather(*guesses, return_exceptions=True)
        assert outcomes.count(None) == 5
        assert sum(isinstance(outcome, ThrottledError) for outcome in outcomes) == 45

    with_store(tmp_path, body)


def test_sec_17_all_guessers_together_are_slowed_down() -> None:
    async def check() -> None:
        throttle, paces = Throttle(MemoryKeys(Time())), (("all", accounts_module.TOTAL_BACKOFF),)
        for _ in range(accounts_module.TOTAL_BACKOFF.free):
            await throttle.take(paces)
        with pytest.raises(ThrottledError):
            await throttle.take(paces)

    asyncio.run(check())


def test_a_refused_try_counts_for_no_key_and_success_forgets() -> None:
    async def check() -> None:
        clock = Time()
        throttle, pace, loose = Throttle(MemoryKeys(clock)), Backoff(free=1, longest=8), Backoff(free=3, longest=8)
        await throttle.take((("a", pace), ("b", loose)))
        for _ in range(5):
            with pytest.raises(ThrottledError):
                await throttle.take((("b", loose), ("a", pace)))
        await throttle.take((("b", loose),))  # the second: the five did not count
        await throttle.forget("a")
        await throttle.take((("a", pace),))
        clock.now += 3_601
        await throttle.take((("a", pace), ("b", loose)))

    asyncio.run(check())


def test_the_throttle_remembers_a_bounded_number_of_keys() -> None:
    async def check() -> None:
        counters, pace = MemoryKeys(Time(), most=200), Backoff(free=1, longest=8)
        throttle = Throttle(counters)
        for n in range(500):
            await throttle.take(((str(n), pace),))
        assert len(counters) <= 200
        with pytest.raises(ThrottledError):
            await throttle.take((("499", pace),))

    asyncio.run(check())


def test_refused_tries_leave_nothing_in_memory() -> None:
    async def check() -> None:
        clock = Time()
        counters, pace = MemoryKeys(clock), Backoff(free=1, longest=8)
        throttle = Throttle(counters)
        await throttle.take((("all", pace),))
        for n in range(2 * MIN_SWEEP):
            with pytest.raises(ThrottledError):
                await throttle.take((("all", pace), (f"stranger {n}", pace)))
            clock.now += 0.0001
        clock.now += 2
        for n in range(2 * MIN_SWEEP):  # ended ones are swept as others come
            await throttle.take(((f"newcomer {n}", Backoff(free=9, longest=8)),))
        assert len(counters) < 3 * MIN_SWEEP

    asyncio.run(check())


def test_sec_17_an_unknown_name_takes_as_long_as_a_known_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cost = {"time_cost": 1, "memory_cost": 32_768, "parallelism": 1}  # so that the hash is most of the work
    monkeypatch.setattr(accounts_module, "COST", cost)

    async def body(store: Store) -> tuple[float, float]:
        accounts = Accounts(store)
        await accounts.add("ada", GOOD)
        await accounts.verify_password("warm-up", "wrong password", "203.0.113.99")
        took: dict[str, list[float]] = {"ada": [], "nobody": []}
        for attempt in range(4):
            for name, times in took.items():
                begun = time.process_time()
                await accounts.verify_password(name, "wrong password", f"203.0.113.{attempt}")
                times.append(time.process_time() - begun)
        return statistics.median(took["ada"]), statistics.median(took["nobody"])

    known, unknown = with_store(tmp_path, body)
    assert unknown > known / 3  # without a hash to verify it would be a twentieth


def test_a_right_origin_outlives_the_tries_of_many_guessers() -> None:
    async def check() -> None:
        counters = MemoryKeys(Time(), most=200)
        guesses = GuessLimiter(counters, Backoff(free=1, longest=8), UNLIMITED, UNLIMITED)
        await guesses.forgive(await guesses.take("ada", "192.0.2.1"))
        for n in range(500):
            await guesses.take(f"name{n}", f"10.{n % 256}.{n // 256}.1")
        await guesses.take("ada", "198.51.100.1")  # somebody guesses at it
        with pytest.raises(ThrottledError):
            await guesses.take("ada", "198.51.100.1")
        await guesses.take("ada", "192.0.2.1")
        assert len(counters) <= 200

    asyncio.run(check())


def test_the_pairing_code_is_128_bits_and_only_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    pairing = PairingCode("https://gate.example/login")
    asyncio.run(pairing.offer())
    asyncio.run(pairing.offer())  # the one there is still holds
    found = re.findall(r"pairing code ([A-Z2-7-]+)", caplog.text)
    assert len(found) == 1
    assert "https://gate.example/login" in caplog.text
    assert len(found[0].replace("-", "")) * 5 >= 128
    assert found[0].replace("-", "") not in repr(vars(pairing))
    assert not asyncio.run(pairing.verify("", "192.0.2.1"))
    assert not asyncio.run(pairing.verify("A" * 26, "192.0.2.1"))
    assert asyncio.run(pairing.verify(found[0].lower().replace("-", " "), "192.0.2.1"))
    asyncio.run(pairing.expire())
    assert not asyncio.run(pairing.verify(found[0], "192.0.2.1"))


def test_sec_17_one_network_of_ipv6_guesses_at_the_pairing_code_as_one() -> None:
    pairing = PairingCode("https://gate.example/login", now=Time())
    asyncio.run(pairing.offer())
    for host in range(5):
        assert not asyncio.run(pairing.verify("A" * 26, f"2001:db8::{host}"))
    with pytest.raises(ThrottledError):
        asyncio.run(pairing.verify("A" * 26, "2001:db8::ffff"))
    assert not asyncio.run(pairing.verify("A" * 26, "2001:db8:0:1::1"))
    assert not asyncio.run(pairing.verify("A" * 26, "2001:db8:0:1::1"))


def test_sec_17_new_networks_of_one_block_do_not_keep_the_operator_from_pairing(
    caplog: pytest.LogCaptureFixture,
) -> None:
    pairing = PairingCode("https://gate.example/login", now=Time())
    asyncio.run(pairing.offer())
    for net in range(300):
        with contextlib.suppress(ThrottledError):
            asyncio.run(pairing.verify("A" * 26, f"2001:db8:1:{net * 256 % 65_536 + net // 256:x}::1"))
    assert asyncio.run(pairing.verify(re.findall(r"pairing code ([A-Z2-7-]+)", caplog.text)[0], "2001:db8:2::1"))


def test_a_pairing_code_holds_ten_minutes_and_then_another_is_offered(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    clock = Time()
    pairing = PairingCode("https://gate.example/login", now=clock)
    asyncio.run(pairing.offer())
    clock.now += 601
    codes = re.findall(r"pairing code ([A-Z2-7-]+)", caplog.text)
    assert not asyncio.run(pairing.verify(codes[0], "192.0.2.1"))
    asyncio.run(pairing.offer())
    codes = re.findall(r"pairing code ([A-Z2-7-]+)", caplog.text)
    assert len(codes) == 2
    assert asyncio.run(pairing.verify(codes[1], "192.0.2.1"))


def test_sec_17_the_pairing_code_is_guessed_slowly(caplog: pytest.LogCaptureFixture) -> None:
    pairing = PairingCode("https://gate.example/login", now=Time())
    asyncio.run(pairing.offer())
    for _ in range(5):
        assert not asyncio.run(pairing.verify("AAAA", "192.0.2.1"))
    with pytest.raises(ThrottledError):
        asyncio.run(pairing.verify("AAAA", "192.0.2.1"))


def test_of_two_first_accounts_at_once_there_is_one(tmp_path: Path) -> None:
    async def body(store: Store) -> None:
        accounts = Accounts(store)
        made = await asyncio.gather(
            *(accounts.add(f"name{n}", GOOD, first=True) for n in range(3)), return_exceptions=True
        )
        assert sum(isinstance(one, Person) for one in made) == 1
        assert len(await accounts.list_accounts()) == 1

    with_store(tmp_path, body)


def test_sec_11_a_login_session_gets_a_new_secret_each_time_and_the_old_one_is_dead(tmp_path: Path) -> None:
    ada, bob = Person("i", "1", "ada"), Person("i", "2", "bob")

    async def body(store: Store) -> None:
        logins = LoginSessions(store)
        first = await logins.start(ada, "what an attacker planted")
        assert await logins.find("what an attacker planted") is None
        held = await logins.find(first)
        assert held is not None
        again = await logins.start(ada, first)
        assert await logins.find(first) is None
        assert await logins.find(again) == held  # forms in other tabs still hold
        other = await logins.start(bob, again)
        found = await logins.find(other)
        assert found is not None
        assert (found.person, found.form_key == held.form_key) == (bob, False)
        await logins.end(other)
        assert await logins.find(other) is None

    with_store(tmp_path, body)


def test_a_login_session_ends_after_a_day_of_work_and_when_its_account_goes(tmp_path: Path) -> None:
    clock = Time()

    async def body(store: Store) -> None:
        accounts, logins = Accounts(store, now=clock), LoginSessions(store, clock)
        ada = await accounts.add("ada", GOOD)
        secret = await logins.start(ada, "")
        clock.now += LIFETIME - 1
        assert await logins.find(secret) is not None
        clock.now += 1
        assert await logins.find(secret) is None
        for change in (accounts.set_password("ada", "another horse"), accounts.remove("ada")):
            secret = await logins.start(ada, "")
            await change
            assert await logins.find(secret) is None

    with_store(tmp_path, body)


def test_the_database_holds_no_secret_of_a_session(tmp_path: Path) -> None:
    async def body(store: Store) -> str:
        return await LoginSessions(store).start(Person("i", "1", "ada"), "")

    secret = with_store(tmp_path, body)
    kept = b"".join(path.read_bytes() for path in (tmp_path / "state").iterdir() if path.is_file())
    assert secret.encode() not in kept
