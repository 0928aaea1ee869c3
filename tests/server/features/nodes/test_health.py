"""A server with nodes is ready while one of them answers."""

from typing import Any

import pytest

from toolgate.server.base.reports.health import ServerHealth
from toolgate.server.features.nodes.health import describe_nodes
from toolgate.server.features.nodes.report import NodeReport


@pytest.mark.parametrize(
    ("answers", "status", "away"),
    [
        ([True, True], "ready", None),
        ([True, False], "ready", ["unix:/1"]),
        ([False, False], "no node answers: unix:/0, unix:/1", ["unix:/0", "unix:/1"]),
        (
            [False] * 7,
            "no node answers: unix:/0, unix:/1, unix:/2, unix:/3, unix:/4, ...",
            [f"unix:/{n}" for n in range(5)],
        ),
    ],
)
def test_a_server_is_ready_while_one_node_answers(answers: list[bool], status: str, away: list[str] | None) -> None:
    nodes = [NodeReport(f"unix:/{n}", "", answer, "", "", None, 0.0, 0, 0) for n, answer in enumerate(answers)]
    parts = [describe_nodes(nodes)]
    expected: dict[str, Any] = {"status": status, "sandbox": "bwrap"}
    expected |= {} if away is None else {"away": away}
    assert ServerHealth(False, "bwrap", parts).describe() == expected
    assert ServerHealth(True, "bwrap", parts).describe()["status"] == "ending"
