"""The rate of reads: full speed at first, then steady."""

from toolgate.tools.api.concurrency.rate_limiter import BURST, MIN_CHARGE, ByteRateLimiter

RATE = 64 * 2**20


def limiter() -> ByteRateLimiter:
    return ByteRateLimiter(lambda: RATE)


def test_a_burst_is_read_at_full_speed_and_what_follows_at_a_steady_rate() -> None:
    account = limiter()
    assert account.charge(int(BURST * RATE), 1000.0) == 1000.0
    assert account.charge(RATE, 1000.0) == 1001.0
    assert account.charge(MIN_CHARGE, 1001.0) == 1001.0 + MIN_CHARGE / RATE
    assert account.charge(RATE - MIN_CHARGE, 1001.0) == 1002.0


def test_idle_time_pays_off_debt_but_earns_no_credit() -> None:
    account = limiter()
    assert account.charge(int(BURST * RATE), 1000.0) == 1000.0
    assert account.charge(int(BURST * RATE), 2000.0) == 2000.0
    assert account.charge(RATE, 2000.0) == 2001.0


def test_a_read_of_a_few_bytes_counts_for_what_it_costs() -> None:
    account = limiter()
    for _ in range(int(BURST * RATE) // MIN_CHARGE):
        assert account.charge(2, 1000.0) <= 1000.0
    assert account.charge(2, 1000.0) == 1000.0 + MIN_CHARGE / RATE
