"""Tasks after the end of their server: which are still there, and which run again."""

import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.clients.raw_client import STATELESS, Refusal, Server, eventually
from tests.clients.raw_task_client import KNOWS, accepted, created, ended, get, text, until
from tests.folder_contents import has_content

Start = Callable[..., Server]


def killed(server: Server) -> None:
    server.process.send_signal(signal.SIGKILL)
    server.process.wait()


def test_a_result_is_there_after_a_restart_and_after_a_kill(probe: Start) -> None:
    how = {"revision": STATELESS, "capabilities": KNOWS}
    first = probe(**how)
    id = created(first, "only_a_job")
    done = ended(first, id)
    assert first.close() == 0
    second = probe(**how)
    assert get(second, id) == done
    killed(second)
    third = probe(**how)
    assert get(third, id) == done
    assert third.request("tasks/cancel", {"taskId": id})
    assert get(third, id) == done


def test_harmless_work_that_a_kill_broke_off_is_done_again_under_the_same_id(probe: Start, tmp_path: Path) -> None:
    how = {"revision": STATELESS, "capabilities": KNOWS}
    first = probe(**how)
    file, runs = tmp_path / "go", tmp_path / "go.runs"
    before = first.call("job", {"file": str(file)})
    assert eventually(lambda: has_content(runs))
    killed(first)
    second = probe(**how)
    assert eventually(lambda: runs.read_text() == "run\nrun\n")  # by itself, not because somebody asks
    again = get(second, before["taskId"])
    assert (again["status"], again["createdAt"]) == ("working", before["createdAt"])
    file.touch()
    assert text(ended(second, before["taskId"])) == "task: True"


def test_tasks_of_a_server_with_other_options_are_left_to_their_own_kind(probe: Start, tmp_path: Path) -> None:
    how = {"revision": STATELESS, "capabilities": KNOWS}
    first = probe(**how)
    file, runs = tmp_path / "go", tmp_path / "go.runs"
    id = created(first, "job", file=str(file))
    assert eventually(lambda: has_content(runs))
    killed(first)
    (tmp_path / "elsewhere").mkdir()
    others = (
        ("--workspace", str(tmp_path / "elsewhere")),
        ("--allow-private", "127.0.0.1"),
        ("-p", str(tmp_path / "elsewhere")),
    )
    for options in others:
        other = probe(*options, **how)
        assert get(other, id)["status"] == "working"  # which is when it would take over what it finds
        assert other.close() == 0
        assert runs.read_text() == "run\n"
    same = probe(**how)
    assert eventually(lambda: runs.read_text() == "run\nrun\n")
    file.touch()
    assert text(ended(same, id)) == "task: True"


def test_stdio_and_http_leave_each_other_what_they_left(
    probe: Start, listen: Callable[..., Any], tmp_path: Path
) -> None:
    from tests.clients.raw_http_client import spoken

    how = {"revision": STATELESS, "capabilities": KNOWS}
    local = probe(**how)
    file, runs = tmp_path / "go", tmp_path / "go.runs"
    mine = created(local, "job", file=str(file))
    assert eventually(lambda: has_content(runs))
    killed(local)
    options = ("--state", str(local.state), "--workspace", str(Path.cwd()))
    site = listen(*options)
    with spoken(site, "http", **how) as remote:
        theirs = created(remote, "job", file=str(file))
        assert get(remote, mine)["status"] == "working"
        site.process.send_signal(signal.SIGKILL)
        site.process.wait()
    before = runs.read_text()
    local = probe(**how)
    assert get(local, theirs)["status"] == "working"
    assert eventually(lambda: runs.read_text() == before + "run\n")
    with spoken(listen(*options), "http", **how) as remote:
        file.touch()
        assert text(ended(remote, theirs)) == "task: True"
    assert text(ended(local, mine)) == "task: True"


def test_a_task_that_kills_two_servers_is_not_run_a_third_time(probe: Start, tmp_path: Path) -> None:
    how = {"revision": STATELESS, "capabilities": KNOWS}
    first = probe(**how)
    runs = tmp_path / "go.runs"
    id = created(first, "job", file=str(tmp_path / "go"))
    assert eventually(lambda: has_content(runs))
    killed(first)
    second = probe(**how)
    assert eventually(lambda: runs.read_text() == "run\nrun\n")
    killed(second)
    failed = ended(probe(**how), id)
    assert failed["status"] == "failed" and "the server ended" in failed["statusMessage"]


@pytest.mark.parametrize("kind", ["killed", "ended"])
def test_work_that_must_not_be_done_twice_has_failed_with_its_server(probe: Start, tmp_path: Path, kind: str) -> None:
    how = {"revision": STATELESS, "capabilities": KNOWS}
    first = probe("--grace", "0.1", **how)
    file, runs = tmp_path / "go", tmp_path / "go.runs"
    id = created(first, "harmful_job", file=str(file))
    assert eventually(lambda: has_content(runs))
    if kind == "killed":
        killed(first)
    else:
        assert first.close() == 0
    second = probe(**how)
    failed = ended(second, id)
    assert failed["status"] == "failed"
    assert failed["error"] == {"code": -32603, "message": failed["statusMessage"]}
    assert "the server ended while this task was under way" in failed["statusMessage"]
    assert runs.read_text() == "run\n"


def test_a_task_that_asked_is_not_run_again(probe: Start) -> None:
    how = {"revision": STATELESS, "capabilities": KNOWS}
    first = probe(**how)
    id = created(first, "asks_later")
    until(first, id, "input_required")
    killed(first)
    assert ended(probe(**how), id)["status"] == "failed"


def test_another_process_on_the_same_state_can_look_but_not_touch(probe: Start, tmp_path: Path) -> None:
    how = {"revision": STATELESS, "capabilities": KNOWS}
    first, second = probe(**how), probe(**how)
    file = tmp_path / "go"
    id = created(first, "job", file=str(file))
    assert get(second, id)["status"] == "working"
    for method in ("tasks/update", "tasks/cancel"):
        with pytest.raises(Refusal) as caught:
            second.request(method, {"taskId": id, "inputResponses": {}})
        assert (caught.value.code, "another server process" in caught.value.message) == (-32603, True)
    second.begin("subscriptions/listen", {"notifications": {"taskIds": [id]}})
    acknowledged = second.wait(lambda said: said.get("method") == "notifications/subscriptions/acknowledged")
    assert acknowledged["params"]["notifications"] == {}
    file.touch()
    done = ended(first, id)
    assert eventually(lambda: get(second, id) == done)  # once it is stored


def test_a_task_whose_call_was_answered_questions_is_not_run_again(probe: Start, tmp_path: Path) -> None:
    how = {"revision": STATELESS, "capabilities": KNOWS}
    first = probe(**how)
    params = {"name": "asks_first", "arguments": {"file": str(tmp_path / "never")}}
    params |= {"inputResponses": {"question-1": accepted("Ada")}}
    id = first.request("tools/call", params)["taskId"]
    killed(first)
    assert ended(probe(**how), id)["status"] == "failed"


def test_over_http_a_tasks_work_may_finish_in_the_grace_time(listen: Callable[..., Any], tmp_path: Path) -> None:
    from tests.clients.raw_http_client import spoken

    site, file = listen("--grace", "10"), tmp_path / "go"
    with spoken(site, "http", revision=STATELESS, capabilities=KNOWS) as first:
        id = created(first, "harmful_job", file=str(file))
        listening = first.begin("subscriptions/listen", {"notifications": {"toolsListChanged": True}})
        first.wait(lambda said: said.get("method") == "notifications/subscriptions/acknowledged")
        site.process.send_signal(signal.SIGTERM)
        first.result(listening)  # the end has begun
        with pytest.raises(subprocess.TimeoutExpired):
            site.process.wait(1)  # and waits for the task
        file.touch()
        assert site.process.wait(60) == 0
    with spoken(listen(), "http", revision=STATELESS, capabilities=KNOWS) as second:
        assert text(get(second, id)) == "done"


def test_a_tasks_work_may_finish_in_the_grace_time(probe: Start, tmp_path: Path) -> None:
    how = {"revision": STATELESS, "capabilities": KNOWS}
    first = probe("--grace", "10", **how)
    file = tmp_path / "go"
    id = created(first, "harmful_job", file=str(file))
    assert first.process.stdin is not None
    first.process.stdin.close()
    file.touch()
    assert first.process.wait(60) == 0
    assert text(get(probe(**how), id)) == "done"
