"""A client has left if its stream was cut and it is not back soon."""

from typing import Any

from toolgate.server.features.mounts.parts.client_sessions import LEFT_AFTER, ClientSessions
from toolgate.server.protocol.session import Session


class Channel:
    can_ask = False
    is_full = False

    def send(self, message: Any) -> None: ...

    def pause(self) -> None: ...


def test_a_client_whose_stream_was_cut_has_left_after_a_while() -> None:
    sessions, channel = ClientSessions(), Channel()
    session = Session("ada", channel)
    sessions.note(session, 0.0)
    assert sessions.find_left(LEFT_AFTER) == []
    channel.can_ask = True
    assert sessions.find_left(1_000.0) == []  # it came late, and had not left
    channel.can_ask = False
    assert sessions.find_left(999.9 + LEFT_AFTER) == []
    assert sessions.find_left(1_000.0 + LEFT_AFTER) == [session.place.key]
    assert sessions.find_left(2_000.0 + LEFT_AFTER) == []  # said once
    channel.can_ask = True
    assert sessions.find_left(3_000.0) == []  # it is back
    sessions.forget(session)
    assert sessions.find_left(4_000.0) == []


def test_a_client_that_never_opens_a_stream_has_not_left() -> None:
    sessions = ClientSessions()
    sessions.note(Session("ada", Channel()), 0.0)
    assert sessions.find_left(0.0) == sessions.find_left(10 * LEFT_AFTER) == []


def test_a_client_that_left_before_any_look_has_left() -> None:
    sessions, channel = ClientSessions(), Channel()
    channel.can_ask = True
    session = Session("ada", channel)
    sessions.note(session, 0.0)
    channel.can_ask = False
    assert sessions.find_left(LEFT_AFTER) == [session.place.key]
