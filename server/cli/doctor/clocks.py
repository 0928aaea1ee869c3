"""Compare this machine's clock with those of other machines that the server works with."""

import asyncio
import time
from collections.abc import Mapping

from toolgate.server.cli.doctor.report import CheckFinding, CheckNote, CheckSkippedError, ClockReading, Now

MOST_OFF = 1.0  # seconds that clocks may differ


async def compare_clocks(readings: Mapping[str, ClockReading], now: Now = time.time) -> CheckFinding:
    """Compare the clocks of these machines, by name, with this one's."""
    answers = await asyncio.gather(*(_read(reading, now) for reading in readings.values()))
    differences = {name: answer for name, answer in zip(readings, answers, strict=True) if answer is not None}
    if not differences:
        raise CheckSkippedError("none of the others answers")
    off = [_describe_difference(name, by) for name, by in differences.items() if abs(by) > MOST_OFF]
    if off:
        return CheckNote("; ".join(off), "set the clocks by NTP: tokens, sign-ins and callbacks go by them")
    return f"{', '.join(differences)}: within a second of this machine's"


async def _read(reading: ClockReading, now: Now) -> float | None:
    """Return by how many seconds a clock is ahead of this machine's, or None. The other checks say why."""
    try:
        before, clock, after = await reading(now)
    except Exception:  # noqa: BLE001  # as above
        return None
    return min(clock - before, 0.0) + max(clock - after, 0.0) if clock else None


def _describe_difference(name: str, seconds: float) -> str:
    return f"{name} is {abs(seconds):,.1f} s {'ahead of' if seconds > 0 else 'behind'} this machine"
