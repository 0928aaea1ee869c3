"""Real agents send their model all that Toolgate answers, over stdio, over HTTP and signed in, and after a restart."""

import functools
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.agents.clients import AGENTS
from tests.agents.facts import FACTS, LIMITS, Outcome
from tests.agents.run import CARRIERS, run_agent

RUNS = [(agent, carrier) for agent in AGENTS for carrier in CARRIERS]
CASES = [(*run, fact) for run in RUNS for fact in FACTS if run[1] in FACTS[fact].carriers]

Ran = Callable[[str, str], Outcome]

pytestmark = pytest.mark.soak


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Ran:
    """Run an agent over a carrier, once: `ran(agent, carrier)`."""

    def run(agent: str, carrier: str) -> Outcome:
        return run_agent(agent, carrier, Path(tmp_path_factory.mktemp("agents")) / f"{agent}-{carrier}")

    return functools.cache(run)


@pytest.mark.parametrize(("agent", "carrier"), RUNS)
def test_an_agent_follows_the_script_to_its_end(ran: Ran, agent: str, carrier: str) -> None:
    outcome = ran(agent, carrier)
    assert (outcome.code, outcome.done) == (0, True), outcome.output


@pytest.mark.parametrize(("agent", "carrier", "fact"), CASES)
def test_the_model_is_sent_what_it_needs(ran: Ran, agent: str, carrier: str, fact: str) -> None:
    outcome = ran(agent, carrier)
    limit = LIMITS.get((agent, fact))
    if limit is not None:
        assert not FACTS[fact].holds(outcome), f"no longer so, take it out of LIMITS: {limit}"
        return
    assert FACTS[fact].holds(outcome), outcome.shown
