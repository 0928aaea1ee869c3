"""The built-in resources: tasks, plan, inbox, output of background tasks, files. On every transport."""

import asyncio
import base64
import json
import os
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from tests.clients.raw_client import PATIENCE, STATELESS, WITH_SESSION, Refusal, Server, eventually
from tests.servers.http_in_process import Inside, inside, named
from toolgate.server.app import builtin_tools
from toolgate.tools.builtin.file_types import mime_type
from toolgate.tools.builtin.skills.skills import Skills
from toolgate.tools.builtin.workspace_files import workspace_file

pytestmark = pytest.mark.pairs

Start = Callable[..., Server]
UPDATED = "notifications/resources/updated"
ERAS = ("2025-11-25", STATELESS)


def refused(server: Server, uri: str) -> Refusal:
    with pytest.raises(Refusal) as caught:
        server.request("resources/read", {"uri": uri})
    return caught.value


def missing(server: Server, uri: str) -> bool:
    refusal = refused(server, uri)
    return refusal.code == (-32602 if server.revision == STATELESS else -32002) and refusal.data == {"uri": uri}


def read(server: Server, uri: str) -> dict[str, Any]:
    (contents,) = server.request("resources/read", {"uri": uri})["contents"]
    held: dict[str, Any] = contents
    return held


def table(server: Server, uri: str) -> Any:
    held = read(server, uri)
    assert (held["uri"], held["mimeType"]) == (uri, "application/json")
    return json.loads(held["text"])


def listed(server: Server) -> dict[str, dict[str, Any]]:
    found, params = [], {}
    while True:
        answer = server.request("resources/list", params)
        found += answer["resources"]
        if "nextCursor" not in answer:
            return {each["uri"]: each for each in found}
        params = {"cursor": answer["nextCursor"]}


def follow(server: Server, *uris: str) -> None:
    """Subscribe in the way of the revision."""
    if server.revision == STATELESS:
        id = server.begin("subscriptions/listen", {"notifications": {"resourceSubscriptions": list(uris)}})
        acknowledged = "notifications/subscriptions/acknowledged"
        server.wait(lambda message: message.get("method") == acknowledged and _subscription(message) == id)
        return
    for uri in uris:
        assert server.request("resources/subscribe", {"uri": uri}) == {}


def _subscription(message: dict[str, Any]) -> Any:
    return message["params"]["_meta"]["io.modelcontextprotocol/subscriptionId"]


def told(server: Server, uri: str) -> Callable[[], None]:
    """Return a function that waits for one more update of `uri`."""
    before = _updates(server, uri)

    def wait() -> None:
        server.wait(lambda _: _updates(server, uri) > before)

    return wait


def _updates(server: Server, uri: str) -> int:
    return sum(message.get("method") == UPDATED and message["params"]["uri"] == uri for message in server.messages)


def uri_of(path: Path | str) -> str:
    return f"file://{quote(str(path))}"


def suggested(server: Server, template: str, variable: str, value: str) -> list[str]:
    reference = {"type": "ref/resource", "uri": template}
    asked = {"ref": reference, "argument": {"name": variable, "value": value}}
    values: list[str] = server.request("completion/complete", asked)["completion"]["values"]
    return values


def test_the_built_in_resources_are_listed_with_their_templates(connect: Start) -> None:
    server = connect(fresh=True, revision="2025-03-26")
    found = listed(server)
    assert found["plan://current"] == {
        "uri": "plan://current",
        "name": "plan",
        "description": "The active plan, if any: its goal, its file and when it began.",
        "mimeType": "application/json",
    }
    assert {"task://list", "callback://inbox", "skill://toolgate-tools/SKILL.md"} <= found.keys()
    templates = [each["uriTemplate"] for each in server.request("resources/templates/list")["resourceTemplates"]]
    assert templates[:4] == ["task://{id}", "bg://{id}/output", "skill://{name}/{+path}", "file:///{+path}"]


def test_each_built_in_resource_is_valid_and_has_its_scope() -> None:
    scopes = {}
    skills = Skills([Path(__file__).parents[3] / "tools" / "skills_builtin"])
    for part in (*builtin_tools.builtin_parts(skills), *builtin_tools.skill_parts(skills)):
        part.verify()
        scopes[part.key] = part.scope
    assert {key: scopes[key] for key in ("file:///{+path}", "bg://{id}/output", "task://{id}", "task://list")} == {
        "file:///{+path}": "tools:read",
        "bg://{id}/output": "tools:shell",
        "task://{id}": "tools:workflow",
        "task://list": "tools:workflow",
    }
    for key in ("plan://current", "callback://inbox", "skill://{name}/{+path}", "toolgate-tools"):
        assert scopes[key] == "tools:workflow"


# -- tasks


@pytest.mark.parametrize("revision", ERAS)
def test_tasks_are_read_listed_and_followed(connect: Start, revision: str) -> None:
    server = connect(fresh=True, revision=revision)
    assert table(server, "task://list") == {"task_id": None, "tasks": [], "older": 0}
    follow(server, "task://list", "task://1", "task://2")
    list_told, one_told, two_told = (told(server, f"task://{name}") for name in ("list", "1", "2"))
    server.text("TaskManager", {"action": "create", "query": "write"})
    list_told()
    one_told()
    one_told = told(server, "task://1")
    server.text("TaskManager", {"action": "create", "query": "print"})  # the first is no longer current
    two_told()
    one_told()
    step_told = told(server, "task://1")
    server.text("TaskManager", {"action": "add", "query": "", "task_id": 1, "text": "a line"})
    step_told()
    steps = [{"step_id": 1, "text": "a line", "completed": False}]
    first = {"task_id": 1, "name": "write", "current": False, "completed": False, "steps": steps}
    second = {"task_id": 2, "name": "print", "current": True, "completed": False, "steps": []}
    assert table(server, "task://1") == first
    assert table(server, "task://list") == {"task_id": 2, "tasks": [first, second], "older": 0}
    done_told = told(server, "task://2")
    server.text("TaskManager", {"action": "complete", "query": "", "task_id": 2})
    done_told()
    switch_told = told(server, "task://1")
    server.text("TaskManager", {"action": "switch", "query": "", "task_id": 1})
    switch_told()
    assert listed(server)["task://1"]["name"] == "write"
    assert "task://2" not in listed(server)
    assert table(server, "task://2")["completed"] is True
    assert suggested(server, "task://{id}", "id", "") == ["2", "1"]


def test_a_task_that_is_not_there_is_not_found(connect: Start) -> None:
    server = connect(fresh=True)
    server.text("TaskManager", {"action": "create", "query": "one"})
    for id in ("3", "01", "-1", "1.0", "x", "%31%20", "9" * 30):
        assert missing(server, f"task://{id}"), id


# -- plan


@pytest.mark.parametrize("revision", ERAS)
def test_the_plan_is_read_and_followed(connect: Start, revision: str) -> None:
    server = connect(fresh=True, revision=revision)
    nothing = {"active": False, "goal": "", "plan_file": None, "started_at": None}
    assert table(server, "plan://current") == nothing
    follow(server, "plan://current")
    entered = told(server, "plan://current")
    server.text("PlanMode", {"action": "enter", "goal": "to see", "plan_file": "plan.md"})
    entered()
    state = table(server, "plan://current")
    assert {**state, "started_at": None} == {**nothing, "active": True, "goal": "to see", "plan_file": "plan.md"}
    assert state["started_at"].endswith("Z")
    left = told(server, "plan://current")
    server.text("PlanMode", {"action": "exit"})
    left()
    assert table(server, "plan://current")["active"] is False
    forgotten = told(server, "plan://current")
    server.text("PlanMode", {"action": "reset"})
    forgotten()
    assert table(server, "plan://current") == nothing


# -- callbacks


@pytest.mark.parametrize("revision", ERAS)
def test_a_callback_that_fired_is_in_the_inbox_also_after_a_restart(start: Start, revision: str) -> None:
    server = start(revision=revision)
    assert table(server, "callback://inbox") == {"fired": []}
    follow(server, "callback://inbox")
    fired = told(server, "callback://inbox")
    server.text("SetCallback", {"action": "set", "message": "look", "delay_seconds": 1, "repeat_count": 1})
    fired()
    server.close()
    (arrival,) = table(start(revision=revision), "callback://inbox")["fired"]
    assert (arrival["callback_id"], arrival["message"]) == (0, "look")
    assert arrival["fired_at"].endswith("Z")


# -- the output of background tasks


@pytest.mark.parametrize("revision", ERAS)
def test_a_subscriber_is_notified_of_a_background_tasks_output_and_end(
    connect: Start, tmp_path: Path, revision: str
) -> None:
    server = connect(fresh=True, revision=revision)
    lines = {"second": tmp_path / "one", "third": tmp_path / "two"}
    for pipe in lines.values():
        os.mkfifo(pipe)
    # the shell ends at once; what it left running goes on
    server.text("BackgroundBash", {"command": f"(cat {tmp_path}/one; cat {tmp_path}/two; exit) & echo first"})
    uri = "bg://1/output"
    assert eventually(lambda: read(server, uri)["text"].startswith("first\n"))
    written = told(server, uri)
    follow(server, uri)
    written()  # for earlier output, which may have arrived since the read
    for line, pipe in lines.items():
        written = told(server, uri)
        pipe.write_text(f"{line}\n")
        written()
        held = read(server, uri)
        assert (held["uri"], held["mimeType"]) == (uri, "text/plain")
        assert f"{line}\n[task 1 " in held["text"]
    assert eventually(lambda: "[task 1 exited with code 0 after" in read(server, uri)["text"])
    assert server.text("ReadBgOutput", {"task_id": 1}).startswith("first\nsecond\nthird\n[task 1 exited")
    assert server.text("ReadBgOutput", {"task_id": 1}).startswith("[task 1 exited")
    assert read(server, uri)["text"].startswith("first\nsecond\nthird\n")
    assert listed(server)[uri]["description"].startswith("(cat ")
    assert suggested(server, "bg://{id}/output", "id", "") == ["1"]


def test_a_subscriber_is_notified_of_the_end_of_a_task_without_output(connect: Start, tmp_path: Path) -> None:
    server = connect(fresh=True)
    go = tmp_path / "go"
    os.mkfifo(go)
    server.text("BackgroundBash", {"command": f"cat {go}"})
    began = told(server, "bg://1/output")
    follow(server, "bg://1/output")
    began()
    ended = told(server, "bg://1/output")
    go.write_bytes(b"")
    ended()
    assert read(server, "bg://1/output")["text"].startswith("[task 1 exited with code 0 after")


@pytest.mark.parametrize("tool", ["BackgroundBash", "Bash"])
def test_a_client_may_subscribe_before_the_background_task_exists(start: Start, tool: str, tmp_path: Path) -> None:
    server = start("--hold", "1", revision="2025-11-25")
    follow(server, "bg://1/output")
    began = told(server, "bg://1/output")
    go = tmp_path / "go"
    os.mkfifo(go)
    server.text(tool, {"command": f"cat {go}"})
    began()
    more = told(server, "bg://1/output")
    go.write_text("words\n")
    more()


def test_long_output_is_read_from_its_end_and_the_rest_is_named(connect: Start) -> None:
    server = connect(fresh=True)
    server.text("BackgroundBash", {"command": "seq 1 100000"})
    assert eventually(lambda: "exited" in server.text("ListBgTasks"))
    text = read(server, "bg://1/output")["text"]
    first, second, *_, last, _ending = text.split("\n")
    assert 200_000 < len(text) < 270_000
    assert last == "100000"
    left = int(first.split()[0].strip("[").replace(",", ""))
    assert first.endswith("output has them]")
    assert sum(len(f"{number}\n") for number in range(1, int(second))) == left


def test_a_background_task_that_is_not_there_is_not_found(connect: Start) -> None:
    server = connect(fresh=True)
    server.text("BackgroundBash", {"command": "true"})
    for id in ("2", "01", "0", "-1", "x"):
        assert missing(server, f"bg://{id}/output"), id
    assert missing(server, "bg://1/other")


def test_a_foreground_command_is_no_resource(connect: Start) -> None:
    server = connect(fresh=True)
    server.text("Bash", {"command": "echo hello"})
    assert missing(server, "bg://1/output")


# -- files


def test_files_are_read_as_text_or_blob_by_their_content(connect: Start, tmp_path: Path) -> None:
    server = connect(fresh=True)
    work = tmp_path / "work"
    files = {
        "notes.md": (b"# N\xc3\xb6te\r\n", "text/markdown", True),
        "a b#c?.txt": (b"x", "text/plain", True),
        "100%.json": (b"{}", "application/json", True),
        "Makefile": (b"all:\n", "text/plain", True),
        "empty": (b"", "text/plain", True),
        "clip.mp3": (b"words", "text/plain", True),
        "picture.png": (b"\x89PNG", "image/png", False),
        "zero.txt": (b"a\0b", "text/plain", False),
        "packed.tar.gz": (b"\x1f\x8b", "application/gzip", False),
        "latin": (b"caf\xe9", "application/octet-stream", False),
    }
    for name, (data, _, _) in files.items():
        (work / name).write_bytes(data)
    for name, (data, kind, is_text) in files.items():
        uri = uri_of(work / name)
        told = {"text": data.decode()} if is_text else {"blob": base64.b64encode(data).decode()}
        assert read(server, uri) == {"uri": uri, "mimeType": kind, **told}
    found = listed(server)
    assert found[uri_of(work / "a b#c?.txt")] == {
        "uri": uri_of(work / "a b#c?.txt"),
        "name": "a b#c?.txt",
        "mimeType": "text/plain",
        "size": 1,
    }


def test_a_folder_is_read_as_its_names_and_the_root_is_listed_without_hidden_entries(
    connect: Start, tmp_path: Path
) -> None:
    server = connect(fresh=True)
    work = tmp_path / "work"
    (work / "sub" / "deep").mkdir(parents=True)
    for name in ("sub/b", "sub/a", "sub/.c", ".hidden", "top"):
        (work / name).touch()
    os.mkfifo(work / "sub" / "pipe")
    (work / "sub" / "inwards").symlink_to(work / "top")
    (work / "sub" / "outwards").symlink_to("/etc/passwd")
    uri = uri_of(work / "sub")
    assert read(server, uri) == {"uri": uri, "mimeType": "inode/directory", "text": ".c\na\nb\ndeep/\ninwards"}
    mine = [each for name, each in listed(server).items() if name.startswith("file:")]
    assert mine == [
        {"uri": uri, "name": "sub", "mimeType": "inode/directory"},
        {"uri": uri_of(work / "top"), "name": "top", "size": 0},
    ]


def test_the_servers_own_folder_is_not_found_even_inside_the_workspace(connect: Start, tmp_path: Path) -> None:
    server = connect("--workspace", str(tmp_path), revision=STATELESS)
    server.text("TaskManager", {"action": "create", "query": "one"})
    (tmp_path / "link").symlink_to(tmp_path / "state")
    assert (tmp_path / "state" / "state.db").exists()
    for path in ("state", "state/state.db", "state/keys", "link", "link/state.db", "state/nothing"):
        assert missing(server, uri_of(tmp_path / path))
    assert read(server, uri_of(tmp_path / "work"))["mimeType"] == "inode/directory"
    assert not {"state/", "link/"} & set(read(server, uri_of(tmp_path))["text"].split("\n"))


def test_a_large_folder_costs_a_bounded_list(connect: Start, tmp_path: Path) -> None:
    server = connect(fresh=True)
    for number in range(1_200):
        (tmp_path / "work" / f"{number:04}").touch()
    lines = read(server, uri_of(tmp_path / "work"))["text"].split("\n")
    assert lines == [*(f"{number:04}" for number in range(1_000)), "… and more"]
    assert sum(uri.startswith("file:") for uri in listed(server)) == 200


@pytest.mark.parametrize("revision", ERAS)
def test_a_file_outside_the_workspace_is_not_found(connect: Start, tmp_path: Path, revision: str) -> None:
    server = connect(fresh=True, revision=revision)
    work = tmp_path / "work"
    (tmp_path / "secret").write_text("secret")
    (tmp_path / "work-too").mkdir()
    (tmp_path / "work-too" / "x").write_text("secret")
    (work / "file").write_text("mine")
    (work / "link").symlink_to(tmp_path / "secret")
    (work / "folder").symlink_to(tmp_path)
    (work / "chain").symlink_to(work / "link")
    (work / "broken").symlink_to(work / "nothing")
    (work / "round").symlink_to(work / "round")
    paths = ["../secret", "..%2fsecret", "%2e%2e/secret", "x/../../secret", "link", "chain", "folder", "folder/secret"]
    paths += ["folder/work-too/x", "broken", "round", "nothing", "file/x", "fi%00le", "fi%5cle", "link/", "%ff"]
    for path in paths:
        assert missing(server, f"file://{work}/{path}")
    absolute = ["file:///", "file:///etc/passwd", uri_of(tmp_path / "secret"), uri_of(tmp_path / "work-too" / "x")]
    absolute += [
        f"file://elsewhere{work}/file",
        f"file:{work}/../secret",
        f"file:////etc/../{work}/file",
        uri_of(tmp_path),
    ]
    for uri in absolute:
        assert missing(server, uri)
    assert read(server, f"file://{work}/fi%6Ce")["text"] == "mine"


@pytest.mark.parametrize("revision", ERAS)
def test_a_file_is_read_by_each_spelling_of_its_uri(connect: Start, tmp_path: Path, revision: str) -> None:
    server = connect(fresh=True, revision=revision)
    work = tmp_path / "work"
    (work / "café x|{1}.txt").write_text("mine")
    canonical = f"{work}/caf%C3%A9%20x%7C%7B1%7D.txt"
    for path in (canonical, f"{work}/café x|{{1}}.txt", f"{work}/caf%c3%a9 %78%7c{{1}}.txt"):
        for begin in ("file://", "FILE://", "file://localhost", "file://LOCALHOST", "file:"):
            contents = read(server, f"{begin}{path}")
            assert (contents["text"], contents["uri"]) == ("mine", f"file://{canonical}")


def test_a_device_or_a_too_large_file_is_refused_without_being_opened(
    connect: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = connect(fresh=True)
    work = tmp_path / "work"
    os.mkfifo(work / "pipe")
    with socket.socket(socket.AF_UNIX) as listening:
        monkeypatch.chdir(work)  # the path of a socket may have no more than 108 bytes
        listening.bind("socket")
    (work / "null").symlink_to("/dev/null")
    with (work / "huge").open("wb") as huge:
        huge.truncate(8 * 2**20 + 1)
    with (work / "large").open("wb") as large:
        large.truncate(8 * 2**20)
    for name, words in {"pipe": "is a pipe", "socket": "is a socket", "huge": "over the limit of 8,388,608"}.items():
        refusal = refused(server, uri_of(work / name))
        assert refusal.code == -32603
        assert words in refusal.message
    assert missing(server, uri_of(work / "null"))
    assert len(base64.b64decode(read(server, uri_of(work / "large"))["blob"])) == 8 * 2**20


@pytest.mark.parametrize("revision", ERAS)
def test_a_subscriber_is_notified_when_a_file_is_edited_replaced_removed_and_made(
    connect: Start, tmp_path: Path, revision: str
) -> None:
    file, folder = tmp_path / "work" / "file", tmp_path / "work" / "folder"
    folder.mkdir(parents=True)
    file.write_text("one")
    server = connect(fresh=True, revision=revision)
    assert eventually(lambda: time.time() - file.stat().st_ctime > 0.2)  # a newer one is reported, to be sure
    follow(server, uri_of(file), uri_of(folder), uri_of(folder / "inner"))

    def replace() -> None:
        file.with_name("draft").write_text("two")
        file.with_name("draft").replace(file)

    for change in (lambda: file.write_text("one and a half"), replace, file.unlink, lambda: file.write_text("three")):
        changed = told(server, uri_of(file))
        change()
        changed()
    assert _updates(server, uri_of(folder)) == 0
    folder_told, inner_told = told(server, uri_of(folder)), told(server, uri_of(folder / "inner"))
    (folder / "inner").write_text("x")
    folder_told()
    inner_told()


LATE = """
import asyncio
from pathlib import Path

from toolgate.tools import Context, resource

@resource("late://{+path}")
async def late(path: str) -> str:
    "A file."
    return Path("/" + path).read_text()

@late.watching
async def late_changes(path: str, ctx: Context):
    await asyncio.sleep(0.5)
    async for change in ctx.watch_path(Path("/" + path)):
        yield change
"""


@pytest.mark.parametrize("revision", ERAS)
def test_a_change_right_after_a_subscription_is_told_however_late_its_watch_begins(
    connect: Start, tmp_path: Path, revision: str
) -> None:
    (tmp_path / "plugins").mkdir()
    (tmp_path / "plugins" / "late.py").write_text(LATE)
    file = tmp_path / "file"
    file.write_text("one")
    server = connect("-p", str(tmp_path / "plugins"), revision=revision)
    assert eventually(lambda: time.time() - file.stat().st_ctime > 0.2)
    uri = f"late://{str(file)[1:]}"
    follow(server, uri)
    changed = told(server, uri)
    file.write_text("two")
    changed()


def test_a_subscriber_is_notified_when_a_link_is_switched_and_when_a_parent_is_moved(
    connect: Start, tmp_path: Path
) -> None:
    work = tmp_path / "work"
    (work / "x" / "y").mkdir(parents=True)
    (work / "links").mkdir()
    deep = work / "x" / "y" / "z.txt"
    for file in (work / "a", work / "b", tmp_path / "out", deep):
        file.write_text(file.name)
        os.utime(file, (1, 1))
    (work / "links" / "mid").symlink_to("../a")
    (work / "cur").symlink_to("links/mid")
    server = connect(fresh=True, revision=STATELESS)
    follow(server, uri_of(work / "cur"), uri_of(deep))

    def switch(link: Path, target: Path) -> None:
        link.with_name("n").symlink_to(target)
        link.with_name("n").replace(link)

    for change, uri in (
        (lambda: switch(work / "links" / "mid", work / "b"), uri_of(work / "cur")),
        (lambda: switch(work / "cur", work / "a"), uri_of(work / "cur")),
        (lambda: (work / "a").write_text("changed"), uri_of(work / "cur")),
        (lambda: (work / "x").rename(work / "x2"), uri_of(deep)),
        (lambda: (work / "x2").rename(work / "x"), uri_of(deep)),
        (lambda: switch(work / "cur", tmp_path / "out"), uri_of(work / "cur")),
    ):
        changed = told(server, uri)
        change()
        changed()
    assert missing(server, uri_of(work / "cur"))
    outside = _updates(server, uri_of(work / "cur"))
    (tmp_path / "out").write_text("more")
    deep_told = told(server, uri_of(deep))
    deep.write_text("changed after it")
    deep_told()
    assert _updates(server, uri_of(work / "cur")) == outside


def test_paths_are_completed_folder_by_folder(connect: Start, tmp_path: Path) -> None:
    server = connect(fresh=True)
    work = tmp_path / "work"
    (work / "source").mkdir()
    for name in ("some.md", "other", ".secret", "source/one", "source/two"):
        (work / name).touch()
    root, template = str(work)[1:], "file:///{+path}"
    assert suggested(server, template, "path", "") == [f"{root}/"]
    assert suggested(server, template, "path", root[:5]) == [f"{root}/"]
    assert suggested(server, template, "path", f"{root}/") == [f"{root}/other", f"{root}/some.md", f"{root}/source/"]
    assert suggested(server, template, "path", f"{root}/so") == [f"{root}/some.md", f"{root}/source/"]
    assert suggested(server, template, "path", f"{root}/.") == [f"{root}/.secret"]
    assert suggested(server, template, "path", f"/{root}/source/o") == [f"{root}/source/one"]
    for outside in ("etc/", "etc/pass", f"{root}/../", f"{root}/nothing/", f"{root}/\0"):
        assert suggested(server, template, "path", outside) == []
    for number in range(150):
        (work / f"x{number:03}").touch()
    assert len(suggested(server, template, "path", f"{root}/x")) == 100


@pytest.mark.parametrize("name", ["a b", "a?b", "a#b", "a%41b", "[x]", "é", "日本", "~", "a;b=c,d&e", "100%", "%2e%2e"])
def test_every_name_has_a_uri_that_leads_back_to_it(tmp_path: Path, name: str) -> None:
    from toolgate.tools.api.text import uri_templates as uris

    spelled = uris.encode_path(f"folder/{name}")
    assert spelled is not None
    assert workspace_file.match(f"file:///{spelled}") == {"path": f"folder/{name}"}


@pytest.mark.parametrize("name", ["a\\b", "a\nb", "a\x7fb", "a\udce9b", "a\u2028b"])
def test_a_name_that_can_not_be_decoded_has_no_uri(name: str) -> None:
    from toolgate.tools.api.text import uri_templates as uris

    assert uris.encode_path(name) is None


def test_a_name_is_no_url_when_its_type_is_guessed() -> None:
    assert mime_type("data:text/html,x") is None
    assert mime_type("folder.html/x") is None
    assert mime_type("a/b.YAML") == "application/yaml"


# -- isolation


async def _ask(here: Inside, user: str, method: str, **params: Any) -> Any:
    meta = {"io.modelcontextprotocol/protocolVersion": STATELESS, "io.modelcontextprotocol/clientCapabilities": {}}
    message = {"jsonrpc": "2.0", "id": 1, "method": method, "params": {**params, "_meta": meta}}
    headers = {"mcp_protocol_version": STATELESS, "mcp_method": method, "x_user": user}
    name = params.get("uri", params.get("name"))
    return await here.ask("POST", message, **headers, **({"mcp_name": name} if name else {})).json()


def test_each_principal_has_its_own_resources(tmp_path: Path) -> None:
    async def body() -> None:
        async with inside(tmp_path) as here:
            started = await _ask(here, "ada", "tools/call", name="BackgroundBash", arguments={"command": "echo $PWD"})
            assert started["result"]["structuredContent"]["task_id"] == 1
            made = {"action": "create", "query": "hers"}
            await _ask(here, "ada", "tools/call", name="TaskManager", arguments=made)
            await _ask(here, "ada", "tools/call", name="PlanMode", arguments={"action": "enter", "goal": "hers"})
            folder = here.app.host.folder() / "workspaces" / named("ada")
            (folder / "file").write_text("hers")
            uris = ["task://1", "bg://1/output", uri_of(folder / "file"), uri_of(folder)]
            for uri in uris:
                assert "result" in await _ask(here, "ada", "resources/read", uri=uri)
                assert (await _ask(here, "bob", "resources/read", uri=uri))["error"]["code"] == -32602
            (plan,) = (await _ask(here, "bob", "resources/read", uri="plan://current"))["result"]["contents"]
            assert json.loads(plan["text"])["active"] is False
            shown = [each["uri"] async for each in _listed(here, "bob")]
            assert not set(uris) & set(shown)
            assert set(uris[:3]) <= {each["uri"] async for each in _listed(here, "ada")}

    asyncio.run(asyncio.wait_for(body(), PATIENCE))


async def _listed(here: Inside, user: str) -> Any:
    params: dict[str, Any] = {}
    while True:
        answer = (await _ask(here, user, "resources/list", **params))["result"]
        for each in answer["resources"]:
            yield each
        if "nextCursor" not in answer:
            return
        params = {"cursor": answer["nextCursor"]}


def test_a_subscriber_is_notified_of_its_own_resources_only(tmp_path: Path) -> None:
    async def body() -> None:
        async with inside(tmp_path) as here:
            heard: list[str] = []

            class Ears:
                def notify_updated(self, uri: str) -> None:
                    heard.append(uri)

            bob = Ears()
            here.app.host.server().updates.subscribe(bob, named("bob"), "task://list")
            made = {"action": "create", "query": "one"}
            await _ask(here, "ada", "tools/call", name="TaskManager", arguments=made)
            await _ask(here, "bob", "tools/call", name="TaskManager", arguments=made)
            here.app.host.server().updates.unsubscribe(bob, named("bob"), "task://list")
            assert heard == ["task://list"]

    asyncio.run(asyncio.wait_for(body(), PATIENCE))


def test_listing_resources_opens_no_database(start: Start, tmp_path: Path) -> None:
    server = start()
    listed(server)
    assert not (tmp_path / "state" / "state.db").exists()


def test_every_era_of_sessions_can_read_them(connect: Start) -> None:
    for revision in WITH_SESSION:
        server = connect(revision=revision)
        assert table(server, "plan://current")["active"] is False
