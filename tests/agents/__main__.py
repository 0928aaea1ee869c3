"""Run one agent, and print what its model was sent and which facts hold: `python -m tests.agents AGENT CARRIER`."""

import argparse
import tempfile
from pathlib import Path

from tests.agents.clients import AGENTS
from tests.agents.facts import FACTS, LIMITS
from tests.agents.run import CARRIERS, run_agent


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.agents", description=__doc__)
    parser.add_argument("agent", choices=list(AGENTS))
    parser.add_argument("carrier", choices=list(CARRIERS))
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        outcome = run_agent(given.agent, given.carrier, Path(folder) / "run")
    print(f"exit code {outcome.code}; the script was {'' if outcome.done else 'not '}followed to its end")
    print(outcome.output)
    for step, shown in outcome.shown.items():
        print(f"\n-- {step}{f', {shown.images} image(s)' if shown.images else ''}\n{shown.text}")
    for name, fact in FACTS.items():
        if given.carrier in fact.carriers:
            print("yes" if fact.holds(outcome) else "NO ", fact.title, LIMITS.get((given.agent, name), ""))


if __name__ == "__main__":
    main()
