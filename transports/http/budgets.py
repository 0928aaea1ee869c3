"""Set what principals share of a server over HTTP, and the most that one of them may have of each.

These counts are a courtesy between principals. What the kernel enforces is the memory of the container and the
descriptors of the process.
"""

from dataclasses import dataclass, fields

from toolgate.server.budget import Budget, Claim
from toolgate.server.principal import Principal
from toolgate.transports.http import body as bodies
from toolgate.transports.http import event_stream as events
from toolgate.transports.http.asgi import Send, refuse

MAX_REQUESTS = 3_072  # of known principals at once: the other connections are left to strangers and pages
MAX_EACH_REQUESTS = 1_024  # of one principal; one more is refused
MAX_STREAMS = 2_048  # read at once: two thirds of the requests, so that calls find room beside them
MAX_EACH_STREAMS = 512  # of one principal; its oldest makes room for one more


@dataclass(frozen=True, slots=True)
class HttpBudgets:
    """`requests` and `streams` are counts; `bodies`, `answers` and `events` are bytes. `answers` are those that wait in
    connections for their readers, `events` what streams keep."""

    requests: Budget
    streams: Budget
    bodies: Budget
    answers: Budget
    events: Budget

    def by_name(self) -> dict[str, Budget]:
        return {field.name: getattr(self, field.name) for field in fields(self)}


async def admit_request(shared: HttpBudgets, principal: Principal, send: Send) -> Claim | None:
    """A place among the requests; None when this one has been refused."""
    place = shared.requests.take(principal.name, 1)
    if place is None:
        await refuse(send, 503, "too many requests at once", [(b"connection", b"close"), (b"retry-after", b"1")])
    return place


def create_budgets(answers: Budget, *, is_single_principal: bool = False) -> HttpBudgets:
    """The server's. `alone`: there is one principal, whose programs share all requests and streams."""
    return HttpBudgets(
        Budget(MAX_REQUESTS, MAX_REQUESTS if is_single_principal else MAX_EACH_REQUESTS),
        Budget(MAX_STREAMS, MAX_STREAMS if is_single_principal else MAX_EACH_STREAMS, renews=True),
        Budget(bodies.MAX_ALL_BODIES, bodies.MAX_BODIES),
        answers,
        Budget(events.MAX_ALL, events.MAX_PER_PRINCIPAL, renews=True),
    )
