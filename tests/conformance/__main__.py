"""Write checks.txt again: the checks that each run of the suite passes today. Review the difference before you commit
it."""

import sys
import tempfile
from pathlib import Path

from tests.conformance.runs import RUNS, TABLE, carry_out, faults, subject, table

COMMENT = "# How many checks of each scenario pass in each run of the suite; written by python -m tests.conformance"


def main() -> int:
    passed: dict[str, dict[str, int]] = {}
    amiss: list[str] = []
    with tempfile.TemporaryDirectory() as folder, subject(Path(folder)) as url:
        for name in RUNS:
            found = carry_out(name, url, Path(folder) / name)
            passed[name] = found.passed
            amiss += [f"{name}: {fault}" for fault in faults(found)]
    TABLE.write_text("\n".join([COMMENT, *table(passed), ""]))
    print("\n".join(amiss), file=sys.stderr)
    return 1 if amiss else 0


if __name__ == "__main__":
    sys.exit(main())
