"""Lend each session, or each principal without one, the services that its tool calls use."""

from collections.abc import Callable

from toolgate.server.protocol.session import Session
from toolgate.tools.api.notices import Notices
from toolgate.tools.api.services import CallerState, Services


def _new_state(principal: str) -> CallerState:
    return CallerState()


class ServicePool:
    """`create(principal, state, notices)` makes Services: once a session, or once a principal where there is none.
    `find_state(principal)` gives where a principal's commands are, whatever the session."""

    def __init__(self, create: Callable[[str, CallerState, Notices], Services]) -> None:
        self.find_state: Callable[[str], CallerState] = _new_state
        self._create = create
        self._notices: dict[str, Notices] = {}
        self._of_principals: dict[str, Services] = {}  # stateless era
        self._of_sessions: dict[Session, Services] = {}

    def notices(self, principal: str) -> Notices:
        held = self._notices.get(principal)
        if held is None:
            held = self._notices[principal] = Notices()
        return held

    def of_session(self, session: Session) -> Services:
        """Return what a call of this session uses: the session's own where it has a key, else the principal's."""
        if not session.key:
            return self.of_principal(session.principal)
        held = self._of_sessions.get(session)
        if held is None:
            principal = session.principal
            held = self._of_sessions[session] = self._create(principal, session.place, self.notices(principal))
        return held

    def peek(self, session: Session) -> Services | None:
        """Return the session's services, or None if it has used none yet: a look creates nothing."""
        return self._of_sessions.get(session)

    def of_principal(self, principal: str) -> Services:
        """Return what is the principal's, whatever the session."""
        held = self._of_principals.get(principal)
        if held is None:
            state, notices = self.find_state(principal), self.notices(principal)
            held = self._of_principals[principal] = self._create(principal, state, notices)
        return held

    def forget(self, principal: str) -> None:
        """Create the principal's services again at the next call."""
        self._of_principals.pop(principal, None)
        for session in [session for session in self._of_sessions if session.principal == principal]:
            del self._of_sessions[session]

    def forget_session(self, session: Session) -> None:
        self._of_sessions.pop(session, None)
