"""What two replicas change of a session at the same time is merged."""

from datetime import UTC, datetime

from msgspec.structs import replace

from toolgate.server.features.replicas.sessions.record import (
    MAX_RECORD,
    SessionRecord,
    decode_record,
    encode_record,
    merge_records,
)
from toolgate.tools.api.context.services import PlanState

BASE = SessionRecord("https://issuer.example", "ada", "app", began=1.0, seen=1.0, grants=("g1",), scopes=("a",))
PLAN = PlanState(True, "tidy up", None, datetime(2026, 1, 1, tzinfo=UTC))


def test_changes_of_different_fields_are_all_there() -> None:
    mine, theirs = replace(BASE, cwd=b"/here"), replace(BASE, plan=PLAN, level=3, version=2)
    assert merge_records(BASE, mine, theirs) == replace(BASE, cwd=b"/here", plan=PLAN, level=3, version=3)


def test_of_two_changes_of_one_field_the_later_counts() -> None:
    mine, theirs = replace(BASE, cwd=b"/mine"), replace(BASE, cwd=b"/theirs", version=2)
    assert merge_records(BASE, mine, theirs).cwd == b"/mine"


def test_subscriptions_and_grants_of_both_are_kept_and_removals_count() -> None:
    base = replace(BASE, subscribed=("a://1", "a://2"))
    mine = replace(base, subscribed=("a://1", "a://3"), grants=("g1", "g2"))
    theirs = replace(base, subscribed=("a://1", "a://2", "a://4"), grants=("g1", ("ada", "app")), version=2)
    merged = merge_records(base, mine, theirs)
    assert merged.subscribed == ("a://1", "a://3", "a://4")
    assert set(merged.grants) == {"g1", "g2", ("ada", "app")}


def test_scopes_of_both_are_kept_and_all_scopes_win() -> None:
    mine, theirs = replace(BASE, scopes=("a", "b")), replace(BASE, scopes=("a", "c"))
    assert merge_records(BASE, mine, theirs).scopes == ("a", "b", "c")
    assert merge_records(BASE, mine, replace(BASE, scopes=None)).scopes is None


def test_a_reader_that_left_one_replica_does_not_hide_one_at_another() -> None:
    base = replace(BASE, listener="aaaaaaaa")
    assert merge_records(base, replace(base, listener=""), base).listener == ""
    assert merge_records(base, replace(base, listener=""), replace(base, listener="bbbbbbbb")).listener == "bbbbbbbb"
    assert merge_records(BASE, base, replace(BASE, listener="bbbbbbbb")).listener == "aaaaaaaa"


def test_a_ready_session_stays_ready() -> None:
    assert merge_records(BASE, BASE, replace(BASE, ready=True)).ready
    assert merge_records(BASE, replace(BASE, ready=True), BASE).ready


def test_a_record_of_another_version_is_none_and_a_large_one_loses_subscriptions() -> None:
    assert decode_record(b'{"issuer": 7}') is None
    assert decode_record(encode_record(replace(BASE, plan=PLAN, cwd=b"\xff"))) == replace(BASE, plan=PLAN, cwd=b"\xff")
    large = replace(BASE, subscribed=tuple(f"a://{number}" + "x" * 1_000 for number in range(100)))
    assert len(encode_record(large)) < MAX_RECORD
    assert decode_record(encode_record(large)) == BASE
