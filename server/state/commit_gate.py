"""Decide between a transaction and the caller that gives it up: either it is never committed, or its end is unknown."""

import threading

from toolgate.server.base.errors import StateError

UNCHANGED = "nothing was changed"
UNKNOWN = "it is not known whether it was applied"


class CommitGate:
    """The gate of one transaction. Its work may run in another thread than its caller."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._has_passed = False
        self._is_abandoned = False

    def enter_commit(self) -> None:
        """Call this before the commit. Raises StateError for an abandoned transaction, which is to be rolled back."""
        with self._lock:
            if self._is_abandoned:
                raise StateError(f"the transaction came too late; {UNCHANGED}")
            self._has_passed = True

    def abandon(self) -> str:
        """Let the transaction not be committed any more. Return what is known of it."""
        with self._lock:
            self._is_abandoned = True
            return UNKNOWN if self._has_passed else UNCHANGED
