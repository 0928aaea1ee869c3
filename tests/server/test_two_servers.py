"""Two servers on one Redis, PostgreSQL and node: what one was told, the other one knows."""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.clients.raw_client import eventually
from tests.clients.stateless_requests import ask, call, text
from tests.folder_contents import has_content
from tests.servers.postgres import Postgres
from tests.servers.replicas import Replicas, running_replicas


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory, postgres: Postgres) -> Iterator[Replicas]:
    folder = tmp_path_factory.mktemp("pair")
    with running_replicas(folder, postgres, "--auth", "oauth", "--approve", "Bash", "--limit", "calls=100") as servers:
        yield servers


def test_an_approval_asked_at_one_runs_at_the_other_once(pair: Replicas) -> None:
    token = pair.token()
    command = {"command": "echo tea"}
    asked = call(pair.sites[0], token, "Bash", command)
    assert asked["resultType"] == "input_required"
    (key,) = asked["inputRequests"]
    retry = {"requestState": asked["requestState"], "inputResponses": {key: {"action": "accept", "content": {}}}}
    assert "tea" in text(call(pair.sites[1], token, "Bash", command, **retry))
    for server in pair.sites:
        assert call(server, token, "Bash", command, **retry)["resultType"] == "input_required"


def test_a_plan_entered_at_one_holds_at_the_other(pair: Replicas) -> None:
    token = pair.token("bob")
    call(pair.sites[0], token, "PlanMode", {"action": "enter", "goal": "tea"})
    refused = call(pair.sites[1], token, "BackgroundBash", {"command": "echo tea"})
    assert refused["isError"] and "while a plan is active" in text(refused)


def test_a_task_of_one_is_cancelled_at_the_other(pair: Replicas, tmp_path: Path) -> None:
    token = pair.token("eve")
    id = call(pair.sites[0], token, "job", {"file": str(tmp_path / "never")})["taskId"]
    assert ask(pair.sites[1], token, "tasks/get", taskId=id)["status"] == "working"
    assert ask(pair.sites[1], token, "tasks/cancel", taskId=id)["resultType"] == "complete"
    for server in pair.sites:
        assert ask(server, token, "tasks/get", taskId=id)["status"] == "cancelled"


def test_a_callback_of_one_is_news_in_the_next_result_at_the_other_once(pair: Replicas) -> None:
    token = pair.token("dan")
    call(
        pair.sites[0], token, "SetCallback", {"action": "set", "message": "tea", "delay_seconds": 1, "repeat_count": 1}
    )
    time.sleep(1.5)
    results = [text(call(server, token, "PlanMode", {"action": "status"})) for server in reversed(pair.sites)]
    assert ["callback 0 fired: tea" in result for result in results] == [True, False]


def test_the_limit_on_calls_counts_at_both(pair: Replicas) -> None:
    token = pair.token("gus")
    refused: list[tuple[int, str]] = []
    for number in range(160):  # 80 at each: neither would refuse one for itself
        place = number % 2
        result = call(pair.sites[place], token, "PlanMode", {"action": "status"})
        if result.get("isError"):
            refused.append((place, text(result)))
    assert {place for place, _ in refused} == {0, 1}
    assert 50 <= len(refused) <= 60, pair.log()  # a server whose Redis is slow counts a call for itself
    assert all("100 calls in a minute are allowed" in said for _, said in refused)


def test_there_is_one_pairing_code(pair: Replicas) -> None:
    logs = pair.log()
    assert logs.count("create the first with the pairing code") == 1


def test_the_work_of_a_killed_server_goes_on_at_the_other(
    tmp_path: Path, postgres: Postgres, capsys: pytest.CaptureFixture[str]
) -> None:
    file, runs = tmp_path / "go", tmp_path / "go.runs"
    with running_replicas(tmp_path, postgres, "--auth", "oauth") as servers:
        token = servers.token()
        id = call(servers.sites[0], token, "job", {"file": str(file)})["taskId"]
        assert eventually(lambda: has_content(runs))
        call(
            servers.sites[0],
            token,
            "SetCallback",
            {"action": "set", "message": "tea", "delay_seconds": 3, "repeat_count": 1},
        )
        time.sleep(1.5)  # both have looked
        began = time.monotonic()
        servers.sites[0].kill()
        assert eventually(lambda: runs.read_text() == "run\nrun\n")
        adopted = time.monotonic() - began
        file.touch()
        news: list[Any] = []

        def has_fired() -> bool:
            news.append(text(call(servers.sites[1], token, "PlanMode", {"action": "status"})))
            return "callback 0 fired: tea" in news[-1]

        assert eventually(has_fired)
        fired = time.monotonic() - began
        assert eventually(lambda: ask(servers.sites[1], token, "tasks/get", taskId=id)["status"] == "completed")
        assert runs.read_text() == "run\nrun\n"
        assert adopted < 5 and fired < 5
    with capsys.disabled():
        print(f"\nadopted after {adopted:.2f} s, fired after {fired:.2f} s")
