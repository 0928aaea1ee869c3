"""The room imports no method, no store and no session: whatever sends webhooks may use it."""

from tests.architecture import rooms

ROOM = "server/features/events/webhooks"


def test_the_room_imports_only_the_way_out_and_the_rate_limit() -> None:
    imported = {"/".join(target.split("/")[:2]) for room, target in rooms.arrows() if room == ROOM}
    assert imported == {"server/policy", "tools/api", "tools/reading/web"}
