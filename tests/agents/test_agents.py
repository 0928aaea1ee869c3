"""Real agents send their model all of Toolgate's answers, over stdio, over HTTP and signed in, and after a restart."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.agents.clients import AGENTS
from tests.agents.facts import FACTS, LIMITS, Outcome
from tests.agents.run import CARRIERS, run_agent

RUNS = [(agent, carrier) for agent in AGENTS for carrier in CARRIERS]
CASES = [(*run, fact) for run in RUNS for fact in FACTS if run[1] in FACTS[fact].carriers]

Ran = Callable[[str, str], Outcome]

pytestmark = pytest.mark.soak


@pytest.fixture(scope="module")
def ran(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ran]:
    """Return the outcome of a run: `ran(agent, carrier)`. The runs of all selected tests go two at a time, as they
    mostly wait."""
    chosen = [item.callspec.params for item in request.session.items if item.path == request.path]
    folder = tmp_path_factory.mktemp("agents")
    pool = ThreadPoolExecutor(2)
    runs = {
        (agent, carrier): pool.submit(run_agent, agent, carrier, folder / f"{agent}-{carrier}")
        for agent, carrier in dict.fromkeys((params["agent"], params["carrier"]) for params in chosen)
    }
    yield lambda agent, carrier: runs[agent, carrier].result()
    pool.shutdown(cancel_futures=True)


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
