"""Describe a task: a tools/call that continues after its request is answered (io.modelcontextprotocol/tasks)."""

import msgspec

LIVE = ("working", "input_required")  # the statuses of a task that has not ended


class StoredTask(msgspec.Struct, frozen=True):
    """A task of the extension. Times are seconds since the epoch; `bytes` are JSON, as on the wire.

    `outcome` is the result of a completed task, or the error of a failed one. `process` names the process that does the
    work; `read` says whether the client has read the outcome.
    """

    id: str
    principal: str
    process: str
    status: str
    message: str | None
    created: float
    updated: float
    expires: float
    outcome: bytes | None = None
    questions: bytes | None = None
    read: bool = False

    @property
    def is_live(self) -> bool:
        return self.status in LIVE
