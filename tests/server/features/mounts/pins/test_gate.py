"""What of a mount's lists is served, however its pins come to be known."""

import asyncio
import logging
from pathlib import Path

import pytest

from tests.server.features.mounts.pins.gated import form, gated
from toolgate.server.features.mounts.lists.list_store import MAX_PERSONAL, MAX_PROFILES
from toolgate.server.features.mounts.pins import rows
from toolgate.server.features.mounts.pins.book import PinSet
from toolgate.server.features.mounts.pins.definitions import ItemDefinition

BASE = form(0)
FIRST_LISTS = "its first lists"


def test_two_mounts_that_only_warn_are_read_once_each(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def run() -> None:
        for _ in range(2):  # the second is a restart
            async with gated(tmp_path) as mounts:
                both = [await mounts.mount(name, "warn", is_read=False) for name in ("b", "c")]
                for mount in both:
                    mount.lists["{}"] = BASE
                    mount.gate.begin()
                both[0].say(form(1))
                await mounts.settle()
                assert mounts.store.reads <= 4
                assert both[0].serves(form(1)) == ["form 1"] and both[1].serves(BASE) == ["form 0"]

    with caplog.at_level(logging.INFO):
        asyncio.run(run())
    assert caplog.text.count(FIRST_LISTS) == 2, "of each mount, at the first start alone"


def test_a_mount_that_comes_while_the_state_is_away_is_held(tmp_path: Path) -> None:
    async def run() -> None:
        async with gated(tmp_path) as mounts:
            (await mounts.mount("far", "hold")).say(BASE)
            await mounts.settle()
        async with gated(tmp_path) as mounts:
            await mounts.mount("other", "hold")
            mounts.store.is_away = True
            far = await mounts.mount("far", "hold", is_read=False)
            far.lists["{}"] = form(1)
            far.gate.begin()
            assert far.serves(form(1)) == []
            mounts.store.is_away = False
            await mounts.settle()
            assert far.serves(form(1)) == [] and far.serves(BASE) == ["form 0"]

    asyncio.run(run())


def test_what_was_refused_stays_out_however_many_forms_follow(tmp_path: Path) -> None:
    async def run() -> None:
        async with gated(tmp_path) as mounts:
            far = await mounts.mount("far", "warn")
            far.say(BASE)
            far.say(form(1))
            await mounts.settle()
            await mounts.decide("far", "refused", lambda pin: b"form 1" in pin.definition)
            for number in range(2, 40):
                far.say(form(number))
            far.say(form(1))
            assert far.serves(form(1)) == [] and far.serves(form(39)) == ["form 39"]

    asyncio.run(run())


def test_any_number_of_forms_of_one_tool_can_be_approved(tmp_path: Path) -> None:
    forms = [form(number) for number in range(40)]

    async def run() -> None:
        async with gated(tmp_path) as mounts:
            far = await mounts.mount("far", "hold")
            for number, lists in enumerate(forms):
                far.say(lists, str(number))
            await mounts.settle()
            assert [bool(far.serves(lists)) for lists in forms] == [True] + [False] * 39
            await mounts.decide("far", "approved", lambda pin: pin.standing == "held")
            assert all(far.serves(lists) for lists in forms) and far.gate.count_withheld() == 0

    asyncio.run(run())


def test_the_oldest_approved_form_is_dropped_and_no_refusal() -> None:
    known = PinSet(0.0, seen=True)
    known.set("tool", "bad", "bad", "refused")
    for number in range(rows.MAX_PINS + 1):
        known.set("tool", "t", str(number), "approved")
        known.set("tool", "h", f"held {number}", "held")
    items = [ItemDefinition("tool", "t", digest, b"") for digest in ("bad", "0", "1", "held 0", "held 1")]
    assert [known.find(item) for item in items] == ["refused", None, "approved", None, "held"]


def test_each_list_is_looked_at_once_however_many_there_are(tmp_path: Path) -> None:
    async def run() -> None:
        async with gated(tmp_path) as mounts:
            far = await mounts.mount("far", "hold")
            for number in range(MAX_PROFILES + MAX_PERSONAL):
                far.say(form(number), str(number))
            await mounts.settle()
            select, every = far.gate.select, list(far.lists.values())
            before = [select(lists) for lists in every]
            assert far.gate.count_withheld() == 1 and far.gate.count_tools() == 1
            far.say(every[7], "7")  # nothing new
            assert all(select(lists) is known for lists, known in zip(every, before, strict=True))
            far.say(form(0), "7")
            assert far.serves(far.lists["7"]) == ["form 0"]
            assert sum(select(lists) is known for lists, known in zip(every, before, strict=True)) == len(every) - 1

    asyncio.run(run())


def test_what_was_decided_elsewhere_counts_once_another_mount_is_read(tmp_path: Path) -> None:
    async def run() -> None:
        async with gated(tmp_path) as mounts, gated(tmp_path) as others:
            far = await mounts.mount("far", "hold")
            far.say(BASE)
            far.say(form(1))
            await mounts.settle()
            assert far.serves(form(1)) == []
            await others.decide("far", "approved", lambda pin: pin.standing == "held")
            await mounts.mount("more", "hold")
            assert far.serves(form(1)) == ["form 1"] and far.serves(far.lists["{}"]) == ["form 1"]

    asyncio.run(run())


def test_what_was_refused_stays_out_under_another_command(tmp_path: Path) -> None:
    async def run() -> None:
        async with gated(tmp_path) as mounts:
            far = await mounts.mount("far", "warn")
            far.say(BASE)
            far.say(form(1))
            far.say(form(2))
            await mounts.settle()
            await mounts.decide(
                "far", "refused", lambda pin: b"form 1" in pin.definition or b"form 2" in pin.definition
            )
            for mode in ("warn", "hold"):
                other = await mounts.mount("far", mode, command=mode)
                mounts.store.is_away = True
                other.say(form(1))
                assert other.serves(form(1)) == [], "before it is written, too"
                mounts.store.is_away = False
                other.say(form(2))
                assert other.serves(form(2)) == []
                await mounts.settle()
                assert other.serves(form(1)) == other.serves(form(2)) == []
            await mounts.decide("far", "approved", lambda pin: b"form 1" in pin.definition)
            assert other.serves(form(1)) == ["form 1"]

    asyncio.run(run())
