"""The order in which receivers get their turns, counted in turns."""

import random
from collections import Counter

import pytest

from toolgate.server.features.events.webhooks import turns as turns_module
from toolgate.server.features.events.webhooks.outbox import PendingSubscription
from toolgate.server.features.events.webhooks.turns import Health, ReceiverLine, Turn, TurnLimits, Turns


def pending(principal: str, host: str, number: int = 0) -> PendingSubscription:
    return PendingSubscription(f"{principal}/{host}/{number}", principal, f"https://{host}/")


def begin_all(turns: Turns) -> list[Turn]:
    return list(iter(turns.begin, None))


def one_after_another(turns: Turns, many: int) -> list[str]:
    """Return which subscriptions get the next turns, if each ends before the next begins."""
    order = []
    for _ in range(many):
        turn = turns.begin()
        assert turn is not None
        turns.end(turn)
        order.append(turn.pending.subscription)
    return order


def test_principals_take_turns() -> None:
    turns = Turns(TurnLimits())
    for number in range(1_000):
        turns.add(pending("flood", f"h{number}"))
    turns.add(pending("quiet", "h"))
    assert one_after_another(turns, 2) == ["flood/h0/0", "quiet/h/0"]


def test_hosts_of_a_principal_take_turns_and_then_subscriptions() -> None:
    turns = Turns(TurnLimits())
    for number in range(3):
        turns.add(pending("p", "a", number))
    turns.add(pending("p", "b"))
    assert one_after_another(turns, 4) == ["p/a/0", "p/b/0", "p/a/1", "p/a/2"]
    assert turns.begin() is None


def test_each_limit_holds() -> None:
    limits = TurnLimits(all=40, principal=10, host=15, receiver=3)
    turns = Turns(limits)
    for principal in "abcdefgh":
        for host in ("shared", *(f"{principal}{number}" for number in range(8))):
            for number in range(8):
                turns.add(pending(principal, host, number))
                turns.set_health(pending(principal, host), Health.ANSWERING)
    running = begin_all(turns)
    assert len(running) == turns.running == 40
    for name, limit in (("principal", 10), ("host", 15)):
        counts = [getattr(turn.pending, name) for turn in running]
        assert max(map(counts.count, counts)) <= limit
    receivers = [(turn.pending.principal, turn.pending.host) for turn in running]
    assert max(map(receivers.count, receivers)) <= 3
    for turn in running:
        turns.end(turn)
    assert turns.running == 0
    assert len(begin_all(turns)) == 40


def test_a_host_that_hangs_for_many_principals_leaves_the_others_their_slots() -> None:
    turns = Turns(TurnLimits(all=64, host=16))
    for number in range(1_000):
        turns.add(pending(f"p{number}", "hanging"))
    assert len(begin_all(turns)) == 12
    turns.add(pending("p999", "other"))
    turns.add(pending("q", "other"))
    assert {turn.pending.host for turn in begin_all(turns)} == {"other"}


def test_failing_receivers_take_half_of_the_slots_and_one_each() -> None:
    turns = Turns(TurnLimits(all=64, principal=16))
    for principal in range(100):
        for number in range(2):
            turns.add(pending(f"p{principal}", "h", number))
        turns.set_health(pending(f"p{principal}", "h"), Health.FAILING)
    for host in range(100):
        turns.add(pending("many", f"h{host}"))
        turns.set_health(pending("many", f"h{host}"), Health.FAILING)
    running = begin_all(turns)
    assert len({(turn.pending.principal, turn.pending.host) for turn in running}) == len(running)
    # half of a host's slots at the host that they share; half of a principal's at the hosts of one principal
    assert Counter(turn.pending.principal == "many" for turn in running) == {False: 8, True: 8}


def test_receivers_that_answered_find_slots_beside_a_thousand_that_hang() -> None:
    turns = Turns(TurnLimits(all=64))
    for number in range(1_000):
        turns.add(pending(f"new{number}", f"h{number}"))
    hanging = begin_all(turns)
    assert len(hanging) == 48
    good = pending("good", "h")
    turns.set_health(good, Health.ANSWERING)
    for _ in range(10):
        turns.add(good)
        assert one_after_another(turns, 1) == ["good/h/0"]


def test_receivers_that_answered_find_slots_beside_others_that_hang_at_the_same_host() -> None:
    turns = Turns(TurnLimits(all=64, host=16))
    for number in range(1_000):
        turns.add(pending(f"new{number}", "shared"))
    assert len(begin_all(turns)) == 12
    good = pending("good", "shared")
    turns.set_health(good, Health.ANSWERING)
    for _ in range(10):
        turns.add(good)
        assert one_after_another(turns, 1) == ["good/shared/0"]


def test_failing_receivers_leave_half_of_the_slots_to_new_ones() -> None:
    turns = Turns(TurnLimits(all=64))
    for number in range(1_000):
        turns.set_health(pending(f"p{number}", f"h{number}"), Health.FAILING)
        turns.add(pending(f"p{number}", f"h{number}"))
    assert len(begin_all(turns)) == 32
    turns.add(pending("new", "h"))
    assert one_after_another(turns, 1) == ["new/h/0"]


def test_a_constant_load_starves_neither_new_nor_failing_receivers() -> None:
    turns = Turns(TurnLimits(all=1))
    good, new, failing = pending("good", "h"), pending("new", "h"), pending("bad", "h")
    turns.set_health(good, Health.ANSWERING)
    turns.set_health(failing, Health.FAILING)
    for each in (good, new, failing):
        turns.add(each)
    order = []
    for _ in range(8):
        turn = turns.begin()
        assert turn is not None
        turns.end(turn)
        order.append(turn.pending.principal)
        turns.add(turn.pending)
    assert order == ["good", "new", "good", "bad"] * 2


def test_a_change_of_health_takes_the_waiting_along() -> None:
    turns = Turns(TurnLimits())
    for number in range(3):
        turns.add(pending("p", "h", number))
    turns.set_health(pending("p", "h"), Health.FAILING)
    assert [turn.health for turn in begin_all(turns)] == [Health.FAILING]
    turns.set_health(pending("p", "h"), Health.ANSWERING)
    assert [turn.health for turn in begin_all(turns)] == [Health.ANSWERING] * 2


def test_a_discarded_subscription_gets_no_turn() -> None:
    turns = Turns(TurnLimits())
    for number in range(2):
        turns.add(pending("p", "h", number))
    turns.discard(pending("p", "h", 0))
    turns.discard(pending("p", "unknown"))
    turns.discard(pending("q", "h"))
    assert [turn.pending for turn in begin_all(turns)] == [pending("p", "h", 1)]


def test_the_health_of_a_bounded_number_of_receivers_is_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turns_module, "MAX_REMEMBERED", 2)
    turns = Turns(TurnLimits())
    for number in range(3):
        turns.add(pending("p", f"h{number}"))
        turns.set_health(pending("p", f"h{number}"), Health.FAILING)
    health = {turn.pending.host: turn.health for turn in begin_all(turns)}
    assert health == {"h0": Health.UNKNOWN, "h1": Health.FAILING, "h2": Health.FAILING}


def test_many_principals_at_one_host_take_turns_in_order() -> None:
    turns = Turns(TurnLimits(all=64, host=16))
    for number in range(1_000):
        turns.add(pending(f"p{number}", "popular"))
        turns.add(pending(f"p{number}", "popular", 1))
    order: list[str] = []
    running = begin_all(turns)
    while running:
        turn = running.pop(0)
        order.append(turn.pending.subscription)
        turns.end(turn)
        running += begin_all(turns)
    assert order == [f"p{number}/popular/{each}" for each in range(2) for number in range(1_000)]


def test_a_full_host_is_not_looked_at_again_and_again() -> None:
    """Counted in lines: those of the principals that wait for a full host are parked once."""
    turns = Turns(TurnLimits(all=64, host=16))
    for number in range(1_000):
        turns.add(pending(f"p{number}", "popular"))
    begin_all(turns)
    found: list[ReceiverLine] = []
    assert list(turns._find_lines(found)) == found == []
    turns.add(pending("late", "popular"))
    assert list(turns._find_lines(found)) == found == []


@pytest.mark.brief("0", "1", "2", "3")
@pytest.mark.parametrize("seed", range(10))
def test_a_turn_begins_whenever_one_may_and_no_limit_is_crossed(seed: int) -> None:
    """Random work, beside a plain count of what may begin."""
    chance = random.Random(seed)
    limits = TurnLimits(
        all=chance.randint(1, 12),
        principal=chance.randint(1, 6),
        host=chance.randint(1, 4),
        receiver=chance.randint(1, 3),
    )
    turns, waiting, health = Turns(limits), dict[str, PendingSubscription](), dict[tuple[str, str], Health]()
    running: list[Turn] = []

    def count(*kinds: Health, **names: str) -> int:
        return sum(
            (not kinds or turn.health in kinds) and all(getattr(turn.pending, key) == names[key] for key in names)
            for turn in running
        )

    def may_begin(each: PendingSubscription) -> bool:
        kind = health.get((each.principal, each.host), Health.UNKNOWN)
        for limit, names in (
            (limits.all, {}),
            (limits.principal, {"principal": each.principal}),
            (limits.host, {"host": each.host}),
        ):
            if count(**names) >= limit:
                return False
            worse = count(Health.UNKNOWN, Health.FAILING, **names)
            if kind is not Health.ANSWERING and worse >= max(1, limit * 3 // 4):
                return False
            if kind is Health.FAILING and count(kind, **names) >= max(1, limit // 2):
                return False
        most = 1 if kind is Health.FAILING else limits.receiver
        return count(principal=each.principal, host=each.host) < most

    for step in range(1_500):
        each = pending(f"p{chance.randrange(5)}", f"h{chance.randrange(4)}", chance.randrange(3))
        match chance.randrange(6):
            case 0 | 1 if all(turn.pending != each for turn in running):
                waiting[each.subscription] = each
                turns.add(each)
            case 2:
                waiting.pop(each.subscription, None)
                turns.discard(each)
            case 3 if running:
                turns.end(running.pop(chance.randrange(len(running))))
            case 4 if step % 5 == 0:
                health[each.principal, each.host] = chance.choice(list(Health))
                turns.set_health(each, health[each.principal, each.host])
            case _:
                allowed = {name for name, other in waiting.items() if may_begin(other)}
                turn = turns.begin()
                assert (turn is None) == (not allowed)
                if turn is not None:
                    assert turn.pending.subscription in allowed
                    del waiting[turn.pending.subscription]
                    running.append(turn)
        assert turns.running == len(running)
