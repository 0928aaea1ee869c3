"""Define what calls ask of the other servers on one state, where a feature shares it. Without one nobody is asked."""

from typing import Protocol

from toolgate.server.base.task import StoredTask
from toolgate.server.calls.task_requests import TaskRequest
from toolgate.tools.api.context.notices import Notices


class TaskSharing(Protocol):
    """The tasks of all servers."""

    async def send(self, owner: str, request: TaskRequest) -> bool:
        """Have the owner carry out a request. Return False if it can't be reached, or does not run the task any more.

        Raises InvalidParams, and InternalError if it is not known whether it did.
        """
        ...

    def notify(self, kept: StoredTask) -> bool:
        """Notify the subscriptions here and elsewhere. Return whether there is one here."""
        ...


class NoticeSharing(Protocol):
    """The notices of all servers, each of which is delivered once."""

    def create_notices(self, principal: str) -> Notices:
        """Return empty notices of the principal. What is added to them is shared."""
        ...

    async def fetch(self, principal: str, notices: Notices) -> None:
        """Bring the principal's notices here, for the result of a call."""
        ...

    def give_back(self, principal: str, notices: Notices) -> None:
        """Let the next result at any server deliver what is left."""
        ...
