"""A resource, which a client reads at a URI: a different quote each time."""

import secrets

from toolgate.tools import resource

QUOTES = (
    "A kiss needs no revision number: both sides understand it at once.",
    "Love is a long-running request that nobody wants to see answered.",
    "The heart keeps no log, and still forgets nothing.",
    "Whoever waits for the right words has already missed the right silence.",
    "Two hearts need one protocol, and a little tolerance for malformed messages.",
    "Say it today: tomorrow has its own list of things unsaid.",
    "Chocolate melts, paper yellows, and the hand that gave them stays warm.",
    "Closeness is not the absence of distance but the wish to cross it.",
    "The shortest letter is still longer than the postman thinks.",
    "Those who laugh together have already agreed on the most important thing.",
    "An embrace is the only argument that convinces both sides.",
    "You do not find a home. You notice one evening that you are in it.",
)


@resource("bacio:///quote", name="quote", title="Quote", mime_type="text/plain")
def quote() -> str:
    """A line about love, as on the slip of paper around a chocolate; another one at each reading."""
    return secrets.choice(QUOTES)
