"""Notice clients that have left without a word: their stream was cut, and they do not come back to it."""

from toolgate.server.protocol.session import Session

LEFT_AFTER = 15.0  # seconds from the last look at which the stream was open: clients come back to it within a few
LOOK = 5.0  # seconds between two looks


class ClientSessions:
    """The sessions of clients, by the key of their place."""

    def __init__(self) -> None:
        self._sessions: dict[str, Session] = {}
        self._heard: dict[str, float] = {}  # when the stream of each was last seen open

    def note(self, session: Session, now: float) -> None:
        """Take a session that asks for something at `now`."""
        key = session.place.key
        if key and key not in self._heard:
            self._sessions[key] = session
            if _is_listening(session):
                self._heard[key] = now

    def forget(self, session: Session) -> None:
        self._sessions.pop(session.place.key, None)
        self._heard.pop(session.place.key, None)

    def find_left(self, now: float) -> list[str]:
        """Return the keys of the sessions whose clients have left by `now`, each once. One that never had a stream open
        may come back at any time."""
        for key, session in self._sessions.items():
            if _is_listening(session):
                self._heard[key] = now
        left = [key for key, heard in self._heard.items() if heard + LEFT_AFTER <= now]
        for key in left:
            del self._heard[key]
        return left


def _is_listening(session: Session) -> bool:
    return session.channel is not None and session.channel.can_ask
