"""Changes of lists are gathered for a moment, and for longer where they keep coming."""

from toolgate.server.features.mounts.mount.pace import LONG, QUICK, SHORT, ChangePace


def test_some_changes_are_passed_on_soon() -> None:
    pace = ChangePace()
    assert [pace.note(now) for now in range(QUICK)] == [SHORT] * QUICK


def test_lists_that_keep_changing_are_fetched_less_often() -> None:
    pace = ChangePace()
    assert [pace.note(float(now)) for now in range(QUICK + 2)][QUICK:] == [LONG, LONG]
    assert pace.note(QUICK + 1 + LONG) == SHORT  # after a pause


def test_a_change_that_each_conversation_tells_of_counts_once() -> None:
    pace = ChangePace()
    assert {pace.note(SHORT * number / 100) for number in range(100)} == {SHORT}
