"""Write the table of docs/clients.md from the facts of `test_agents`. `make reference` puts it there."""

from collections.abc import Iterator

from tests.agents.clients import AGENTS, version
from tests.agents.facts import FACTS, LIMITS


def write_table() -> str:
    """Return the table: a row per fact, a column per agent."""
    head = ["what the model gets", *(f"{agent.title} {version(agent)}" for agent in AGENTS.values())]
    lines = [head, ["---"] * len(head), *_rows()]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def _rows() -> Iterator[list[str]]:
    for name, fact in FACTS.items():
        title = fact.title if "stdio" in fact.carriers else f"over HTTP: {fact.title}"
        yield [title, *(f"no: {LIMITS[agent, name]}" if (agent, name) in LIMITS else "yes" for agent in AGENTS)]
