"""docs/troubleshooting.md matches doctor's findings."""

import re

from tests.clients.raw_client import ROOT
from tests.server.cli.doctor.test_doctor_faults import EVERY as HERE
from tests.server.features.remote_checks.test_faults import EVERY as ELSEWHERE
from toolgate.server.cli.doctor import main
from toolgate.server.features.remote_checks import checks

PAGE = (ROOT / "docs" / "troubleshooting.md").read_text()
ROW = re.compile(r"^\| `([^`]+)` \| ([^|]+) \| ([^|]+) \| ([^|]+) \|$", re.M)


def test_each_fault_that_doctor_finds_is_on_the_page() -> None:
    rows = [(row, says) for row, says, _, _ in ROW.findall(PAGE)]
    lacking = [
        f"{name}: `{link}` {said}"
        for name, (link, said) in {**HERE, **ELSEWHERE}.items()
        if not any(row == link and said in says for row, says in rows)
    ]
    assert lacking == []


def test_each_row_of_the_page_is_one_that_doctor_has() -> None:
    assert {row for row, _, _, _ in ROW.findall(PAGE)} <= {
        *checks.REMOTE_CHECKS,
        *main.MACHINE_CHECKS,
        *("audit", "webhooks", "secret", "Redis", "other clocks", "node", "address"),  # those of features
    }
    assert len(ROW.findall(PAGE)) == len(re.findall(r"^\| `", PAGE, re.M)), "a row that is not read"


def test_what_the_page_quotes_about_nodes_is_what_the_program_says() -> None:
    section = PAGE.partition("### With nodes")[2].partition("\n## ")[0]
    quotes = re.findall(r'^\| "([^"]+)"', section, re.M)
    assert len(quotes) == len(re.findall(r'^\| "', section, re.M)) > 10
    source = "\n".join(path.read_text() for path in (ROOT / "server").rglob("*.py"))
    joined = re.sub(r"\{[^{}]*\}", "…", re.sub(r'"\s*\n\s*f?"', "", source))
    assert [quote for quote in quotes if quote.strip("… ") not in joined] == []
