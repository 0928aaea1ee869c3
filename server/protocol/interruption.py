"""Answer the requests that the end of the server interrupts."""

from toolgate.server.protocol.errors import InternalError
from toolgate.server.protocol.message_ids import Id
from toolgate.server.protocol.messages import Failure, Outbound

INTERRUPTED = "the server restarted during this request, which may or may not have taken effect"

RequestIds = Id | list[Id]  # a request, or the requests of a batch


def interrupted_answer(ids: RequestIds) -> Outbound:
    """Return the answer to a request or batch that the server's end interrupted."""
    error = InternalError(INTERRUPTED)
    return [Failure(id, error) for id in ids] if isinstance(ids, list) else Failure(ids, error)
