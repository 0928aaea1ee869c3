"""Define the errors of events. Their numbers differ between the drafts of SEP-3415 and the clients that there are.

A client that declares the extension gets the numbers of the late draft. The others get those of the sketch before it,
which most servers still send.
"""

from typing import Any

from toolgate.server.protocol.errors import RpcError
from toolgate.server.protocol.request_meta import PREFIX

EXTENSION = PREFIX + "events"
CODES = {  # name → number in the late draft, and before
    "NotFound": (-32023, -32011),
    "Forbidden": (-32024, -32012),
    "ResourceExhausted": (-32025, -32013),
    "Unsupported": (-32026, -32014),
    "CallbackEndpointError": (-32027, -32015),
}


class EventError(Exception):
    """A refusal of one of the names in `CODES`; `data` says more."""

    def __init__(self, name: str, message: str, **data: Any) -> None:
        super().__init__(message)
        self.name = name
        self.message = message
        self.data = data

    def to_rpc(self, *, is_declared: bool) -> RpcError:
        """Return the error for a client that has declared the extension, or has not."""
        error = RpcError(self.message, self.data)
        error.code = CODES[self.name][0 if is_declared else 1]
        return error

    def to_wire(self, *, is_declared: bool) -> dict[str, Any]:
        """Return the error as a notification carries it."""
        error = self.to_rpc(is_declared=is_declared)
        return {"code": error.code, "message": error.message, "data": error.data}
