"""Skills as resources, as prompts, and by the extension io.modelcontextprotocol/skills (SEP-2640)."""

import base64
import hashlib
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.clients.raw_client import STATELESS, WITH_SESSION, Refusal, Server

pytestmark = pytest.mark.pairs

Start = Callable[..., Server]
UPDATED = "notifications/resources/updated"
SKILL = "---\nname: {name}\ndescription: {about}\n---\nWork on $ARGUMENTS.\n"
TEMPLATE = "skill://{name}/{+path}"


def write(folder: Path, name: str, about: str = "what it is for", **files: bytes) -> Path:
    """Write a skill with files; `_` in a name stands for `/`."""
    skill = folder / name
    skill.mkdir(parents=True, exist_ok=True)
    (skill / "SKILL.md").write_text(SKILL.format(name=name, about=about))
    for path, data in files.items():
        file = skill / path.replace("_", "/")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(data)
    return skill


def refused(server: Server, method: str, **params: Any) -> Refusal:
    with pytest.raises(Refusal) as caught:
        server.request(method, params)
    return caught.value


def data_of(contents: dict[str, Any]) -> bytes:
    return base64.b64decode(contents["blob"]) if "blob" in contents else contents["text"].encode()


def entries(server: Server) -> dict[str, dict[str, Any]]:
    found: list[dict[str, Any]] = []
    params: dict[str, Any] = {}
    while True:
        answer = server.request("skills/list", params)
        assert (answer["ttlMs"], answer["cacheScope"]) == (0, "private")
        found += answer["skills"]
        if "nextCursor" not in answer:
            assert len({entry["uri"] for entry in found}) == len(found)
            return {entry["uri"]: entry for entry in found}
        params = {"cursor": answer["nextCursor"]}


def prompts(server: Server) -> dict[str, dict[str, Any]]:
    return {each["name"]: each for each in server.request("prompts/list")["prompts"]}


def resources(server: Server) -> dict[str, dict[str, Any]]:
    found, params = [], {}
    while True:
        answer = server.request("resources/list", params)
        found += answer["resources"]
        if "nextCursor" not in answer:
            return {each["uri"]: each for each in found}
        params = {"cursor": answer["nextCursor"]}


def told(server: Server, method: str) -> int:
    return sum(message.get("method") == method for message in server.messages)


# -- the extension


def test_the_extension_is_declared_on_the_stateless_revision_alone(connect: Start) -> None:
    declared = connect(revision=STATELESS).request("server/discover")["capabilities"]
    assert declared["extensions"]["io.modelcontextprotocol/skills"] == {"directoryRead": True}
    for revision in WITH_SESSION:
        server = connect(revision=revision)
        assert "extensions" not in server.hello["capabilities"]
        for method in ("skills/list", "skills/get", "resources/directory/read"):
            assert refused(server, method, uri="skill://toolgate-tools").code == -32601


def test_a_skill_is_listed_with_every_file_and_what_is_read_has_its_digest(connect: Start, tmp_path: Path) -> None:
    folder = tmp_path / "skills"
    files = {"references_a b#c?.md": "ä".encode(), "assets_logo.png": b"\x89PNG\0", "assets_deep_x": b"", "z.txt": b"z"}
    skill = write(folder, "pdf", **files)
    manifest = (
        "---\nname: pdf\ndescription: >\n  Read\n  PDFs\nlicense: MIT\nmetadata: {version: '2.1', on: yes}\n"
        "since: 2024-05-01\n---\nbody"
    )
    (skill / "SKILL.md").write_text(manifest)
    server = connect("--skills", str(folder), revision=STATELESS)
    entry = entries(server)["skill://pdf/SKILL.md"]
    assert server.request("skills/get", {"uri": "skill://pdf/SKILL.md"})["skill"] == entry
    assert entry["frontmatter"] == {
        "name": "pdf",
        "description": "Read PDFs\n",
        "license": "MIT",
        "metadata": {"version": "2.1", "on": "yes"},
        "since": "2024-05-01",
    }
    paths = ["SKILL.md", "assets/deep/x", "assets/logo.png", "references/a%20b%23c%3F.md", "z.txt"]
    assert [each["uri"] for each in entry["resources"]] == [f"skill://pdf/{path}" for path in paths]
    for each in entry["resources"]:
        (contents,) = server.request("resources/read", {"uri": each["uri"]})["contents"]
        data = data_of(contents)
        assert contents["uri"] == each["uri"]
        assert each["digest"] == f"sha256:{hashlib.sha256(data).hexdigest()}"
        assert each["size"] == len(data)


@pytest.mark.parametrize("folder", ["snake_case", "With Space", "UPPER", "-2chat", "Grüße", "a.b"])
def test_a_skill_with_the_name_of_its_folder_is_listed_and_read(connect: Start, tmp_path: Path, folder: str) -> None:
    skill = write(tmp_path / "skills", folder, notes_a=b"a")
    server = connect("--skills", str(tmp_path / "skills"), revision=STATELESS)
    (uri,) = [uri for uri in entries(server) if "toolgate-tools" not in uri]
    entry = server.request("skills/get", {"uri": uri})["skill"]
    assert entry["frontmatter"]["name"] == folder
    for each in entry["resources"]:
        (contents,) = server.request("resources/read", {"uri": each["uri"]})["contents"]
        assert data_of(contents) == (skill / contents["uri"].split("/", 3)[3]).read_bytes()
    root = uri.removesuffix("/SKILL.md")
    listed = server.request("resources/directory/read", {"uri": root})["resources"]
    assert [each["uri"] for each in listed] == [f"{root}/notes", uri]
    assert uri in resources(server)
    assert folder in prompts(server)
    answer = server.request("prompts/get", {"name": folder, "arguments": {"arguments": "this"}})
    assert answer["messages"][0]["content"]["text"].startswith("Work on this.")


def test_listed_skills_are_those_invoke_skill_offers(connect: Start, tmp_path: Path) -> None:
    folder = tmp_path / "skills"
    for name in ("one", "two"):
        write(folder, name, inner_file=b"x")
    (folder / "broken").mkdir()
    (folder / "broken" / "SKILL.md").write_text("---\nname: broken\n---\n")
    odd = folder / "odd"
    odd.mkdir()
    (odd / "SKILL.md").write_text('---\nname: odd\ndescription: x\nnote: "\\ud800"\n---\n')  # no message can hold it
    server = connect("--skills", str(folder), "--structured-output", "full", revision=STATELESS)
    found = entries(server)
    assert "skill://broken/SKILL.md" not in found
    assert "skill://odd/SKILL.md" not in found
    for uri, entry in found.items():
        name = uri.split("/")[2]
        offered = server.call("InvokeSkill", {"skill_name": name})["structuredContent"]
        listed = [each["uri"].removeprefix(f"skill://{name}/") for each in entry["resources"]]
        assert listed == ["SKILL.md", *offered["files"]]
    assert {"skill://one/SKILL.md", "skill://two/SKILL.md", "skill://toolgate-tools/SKILL.md"} <= found.keys()


def test_an_unknown_skill_is_invalid_params(connect: Start, tmp_path: Path) -> None:
    write(tmp_path / "skills", "one", inner_file=b"x")
    server = connect("--skills", str(tmp_path / "skills"), revision=STATELESS)
    near = ("skill://one", "skill://one/inner/file", "skill://one/../one/SKILL.md", "skill://one/skill.md")
    for uri in (*near, "skill://none/SKILL.md", "file:///etc/passwd", "x", ""):
        refusal = refused(server, "skills/get", uri=uri)
        assert (refusal.code, refusal.data) == (-32602, {"uri": uri})


def test_requests_of_the_wrong_shape_are_invalid_params(connect: Start) -> None:
    server = connect(revision=STATELESS)
    for method in ("skills/get", "resources/directory/read"):
        for uri in (None, 5, ["skill://x"], {}):
            assert refused(server, method, uri=uri).code == -32602
    assert refused(server, "skills/list", cursor="x").code == -32602
    assert refused(server, "resources/directory/read", uri="skill://toolgate-tools", cursor="x").code == -32602


def test_many_skills_come_in_pages(connect: Start, tmp_path: Path) -> None:
    for number in range(45):
        write(tmp_path / "skills", f"skill-{number:02}")
    server = connect("--skills", str(tmp_path / "skills"), revision=STATELESS)
    assert len(server.request("skills/list")["skills"]) == 20
    assert set(entries(server)) >= {f"skill://skill-{number:02}/SKILL.md" for number in range(45)}


def test_a_file_that_changes_has_another_digest_at_once(connect: Start, tmp_path: Path) -> None:
    skill = write(tmp_path / "skills", "one", **{"a.txt": b"before"})
    server = connect("--skills", str(tmp_path / "skills"), revision=STATELESS)
    for data in (b"before", b"behind", b"much longer", b""):
        (skill / "a.txt").write_bytes(data)
        entry = server.request("skills/get", {"uri": "skill://one/SKILL.md"})["skill"]
        digests = {each["uri"]: each["digest"] for each in entry["resources"]}
        assert digests["skill://one/a.txt"] == f"sha256:{hashlib.sha256(data).hexdigest()}"
    (skill / "a.txt").unlink()
    entry = server.request("skills/get", {"uri": "skill://one/SKILL.md"})["skill"]
    assert [each["uri"] for each in entry["resources"]] == ["skill://one/SKILL.md"]


def test_files_beyond_the_limits_are_no_part_of_a_skill(connect: Start, tmp_path: Path) -> None:
    many = write(tmp_path / "skills", "many")
    for number in range(600):
        (many / f"{number:03}").touch()
    large = write(tmp_path / "skills", "large")
    for name, size in {"a": 10, "b": 10, "c": 1}.items():
        with (large / name).open("wb") as file:
            file.truncate(size * 2**20)
    server = connect("--skills", str(tmp_path / "skills"), revision=STATELESS)
    found = entries(server)
    assert len(found["skill://many/SKILL.md"]["resources"]) == 512
    assert [each["uri"][-1] for each in found["skill://large/SKILL.md"]["resources"]] == ["d", "a", "c"]
    for uri in ("skill://many/511", "skill://large/b"):
        assert refused(server, "resources/read", uri=uri).code == -32602
    assert len(data_of(server.request("resources/read", {"uri": "skill://large/c"})["contents"][0])) == 2**20


# -- folders


def test_a_folder_of_a_skill_is_read_child_by_child(connect: Start, tmp_path: Path) -> None:
    skill = write(tmp_path / "skills", "one", **{"b.md": b"x", "inner_deep_file": b"", "inner_a b.png": b""})
    (skill / "empty").mkdir()
    server = connect("--skills", str(tmp_path / "skills"), revision=STATELESS)

    def children(uri: str) -> list[dict[str, Any]]:
        answer = server.request("resources/directory/read", {"uri": uri})
        assert (answer["ttlMs"], answer["cacheScope"]) == (0, "private")
        found: list[dict[str, Any]] = answer["resources"]
        return found

    manifest = {"uri": "skill://one/SKILL.md", "name": "one", "description": "what it is for"}
    size = (skill / "SKILL.md").stat().st_size
    assert children("skill://one") == [
        {"uri": "skill://one/inner", "name": "inner", "mimeType": "inode/directory"},
        {**manifest, "mimeType": "text/markdown", "size": size},
        {"uri": "skill://one/b.md", "name": "b.md", "mimeType": "text/markdown", "size": 1},
    ]
    assert children("skill://one/inner") == [
        {"uri": "skill://one/inner/deep", "name": "deep", "mimeType": "inode/directory"},
        {"uri": "skill://one/inner/a%20b.png", "name": "a b.png", "mimeType": "image/png", "size": 0},
    ]
    unknown = [
        "skill://one/b.md",
        "skill://one/SKILL.md",
        "skill://one/none",
        "skill://none",
        "skill://",
    ]
    unknown += [
        "skill://one/inner/..",
        "skill://one/../one",
        "skill://one/empty",
        "note://one",
        "x",
    ]
    for uri in unknown:
        refusal = refused(server, "resources/directory/read", uri=uri)
        assert (refusal.code, refusal.data) == (-32602, {"uri": uri})


def test_a_folder_of_the_workspace_is_read_in_pages_and_none_outside(connect: Start, tmp_path: Path) -> None:
    server = connect(revision=STATELESS, fresh=True)
    work = tmp_path / "work"
    for number in range(300):
        (work / f"{number:03}.txt").touch()
    (work / "out").symlink_to(tmp_path)
    first = server.request("resources/directory/read", {"uri": f"file://{work}"})
    rest = server.request("resources/directory/read", {"uri": f"file://{work}", "cursor": first["nextCursor"]})
    assert [each["name"] for each in first["resources"] + rest["resources"]] == [f"{n:03}.txt" for n in range(300)]
    for uri in (
        f"file://{work}/out",
        f"file://{tmp_path}",
        "file:///",
        f"file://{work}/../..",
        f"file://{work}/000.txt",
    ):
        assert refused(server, "resources/directory/read", uri=uri).code == -32602


# -- resources


def test_a_skill_is_a_listed_resource_in_every_era_and_its_files_complete(connect: Start, tmp_path: Path) -> None:
    write(tmp_path / "skills", "one", about="first of all", **{"inner_file.txt": b"x"})
    for revision in (*WITH_SESSION, STATELESS):
        server = connect("--skills", str(tmp_path / "skills"), revision=revision)
        listed = resources(server)["skill://one/SKILL.md"]
        assert {name: listed[name] for name in ("name", "description", "mimeType")} == {
            "name": "one",
            "description": "first of all",
            "mimeType": "text/markdown",
        }
        (contents,) = server.request("resources/read", {"uri": "skill://one/inner/file.txt"})["contents"]
        assert contents == {"uri": "skill://one/inner/file.txt", "mimeType": "text/plain", "text": "x"}
    asked = {"ref": {"type": "ref/resource", "uri": TEMPLATE}, "argument": {"name": "path", "value": "i"}}
    asked["context"] = {"arguments": {"name": "one"}}
    assert server.request("completion/complete", asked)["completion"]["values"] == ["inner/file.txt"]
    asked["argument"] = {"name": "name", "value": "o"}
    assert server.request("completion/complete", asked)["completion"]["values"] == ["one"]


def test_nothing_but_the_files_of_a_skill_is_read(connect: Start, tmp_path: Path) -> None:
    skill = write(tmp_path / "skills", "one", **{"inner_file": b"x", ".env": b"secret", "inner_.git_config": b"secret"})
    write(tmp_path / "skills", "two")
    (tmp_path / "secret").write_text("secret")
    (skill / "link").symlink_to(tmp_path / "secret")
    (skill / "folder").symlink_to(tmp_path)
    (skill / "inwards").symlink_to(skill / "inner")
    os.mkfifo(skill / "pipe")
    server = connect("--skills", str(tmp_path / "skills"), revision=STATELESS)
    paths = ["../../secret", "..%2f..%2fsecret", "%2e%2e/two/SKILL.md", "link", "folder/secret", "inwards/file", "pipe"]
    paths += [".env", "inner/.git/config", "inner", "", "none", "inner/file/x", "inner//file", "./inner/file", "a%00"]
    for path in paths:
        refusal = refused(server, "resources/read", uri=f"skill://one/{path}")
        assert (refusal.code, refusal.message) == (-32602, "resource not found"), path
    for uri in ("skill://none/SKILL.md", "skill://one", "skill://", "skill://.././SKILL.md", "skill:///etc/passwd"):
        assert refused(server, "resources/read", uri=uri).code == -32602
    listed = json.dumps(entries(server)["skill://one/SKILL.md"])
    assert not any(word in listed for word in ("secret", "link", "folder", "pipe", "env", "inwards"))


@pytest.mark.parametrize("revision", ["2025-11-25", STATELESS])
def test_a_follower_is_told_when_a_skill_is_edited(connect: Start, tmp_path: Path, revision: str) -> None:
    skill = write(tmp_path / "skills", "one", inner_file=b"x")
    server = connect("--skills", str(tmp_path / "skills"), revision=revision)
    uris = ["skill://one/SKILL.md", "skill://one/inner/file"]
    if revision == STATELESS:
        server.begin("subscriptions/listen", {"notifications": {"resourceSubscriptions": uris}})
        server.wait(lambda message: message.get("method") == "notifications/subscriptions/acknowledged")
    else:
        for uri in uris:
            server.request("resources/subscribe", {"uri": uri})
    (skill / "inner" / "file").write_bytes(b"other")
    server.wait(lambda said: said.get("method") == UPDATED and said["params"]["uri"] == uris[1])
    (skill / "SKILL.md").write_text(SKILL.format(name="one", about="what it is for") + "More.")
    server.wait(lambda said: said.get("method") == UPDATED and said["params"]["uri"] == uris[0])


# -- prompts


def test_a_skill_is_a_prompt_that_says_what_the_tool_says(connect: Start, tmp_path: Path) -> None:
    write(tmp_path / "skills", "one", about="first of all", inner_file=b"x")
    server = connect("--skills", str(tmp_path / "skills"), revision="2025-03-26")
    argument = {"name": "arguments", "description": "what the skill is to work on"}
    assert prompts(server)["one"] == {"name": "one", "description": "first of all", "arguments": [argument]}
    for given in ({}, {"arguments": "the report"}):
        said = server.request("prompts/get", {"name": "one", "arguments": given})
        text = server.text("InvokeSkill", {"skill_name": "one", **given})
        assert said == {
            "description": "first of all",
            "messages": [{"role": "user", "content": {"type": "text", "text": text}}],
        }
    assert "Work on the report." in text
    for given in ({"other": "x"}, {"arguments": "x" * 20_001}, {"arguments": 5}):
        assert refused(server, "prompts/get", name="one", arguments=given).code == -32602


def test_a_new_skill_is_a_new_prompt_resource_and_line_and_each_list_is_told_of_once(
    connect: Start, tmp_path: Path
) -> None:
    folder = tmp_path / "skills"
    write(folder, "one")
    server = connect("--skills", str(folder))
    lists = [f"notifications/{kind}/list_changed" for kind in ("tools", "prompts", "resources")]
    write(folder, "two", about="second to none")
    for method in lists:
        server.wait(lambda said, method=method: said.get("method") == method)  # type: ignore[misc]
    assert prompts(server)["two"]["description"] == "second to none"
    assert resources(server)["skill://two/SKILL.md"]["description"] == "second to none"
    (folder / "two" / "SKILL.md").unlink()
    for method in lists:
        server.wait(lambda _, method=method: told(server, method) == 2)  # type: ignore[misc]
    assert "two" not in prompts(server)
    assert [told(server, method) for method in lists] == [2, 2, 2]
    assert refused(server, "prompts/get", name="two").code == -32602


def test_a_skill_with_the_name_of_a_plugins_prompt_is_a_prompt_when_the_plugin_is_gone(
    start: Start, tmp_path: Path
) -> None:
    skills, plugins = tmp_path / "skills", tmp_path / "plugins"
    plugins.mkdir()
    source = (
        'from toolgate.tools import prompt\n\n@prompt()\ndef mine() -> str:\n    """The plugin\'s."""\n    return "x"\n'
    )
    (plugins / "plugin.py").write_text(source)
    skills.mkdir()
    server = start("--skills", str(skills), "-p", str(plugins))
    changed = "notifications/prompts/list_changed"
    assert prompts(server)["mine"]["description"] == "The plugin's."
    write(skills, "mine", about="the skill's")
    server.wait(lambda said: said.get("method") == "notifications/resources/list_changed")
    assert prompts(server)["mine"]["description"] == "The plugin's." and told(server, changed) == 0
    manifest = str(skills / "mine" / "SKILL.md")
    assert f"'mine' of {manifest} is left out: {plugins / 'plugin.py'} declares it, too" in server.log()
    (plugins / "plugin.py").unlink()
    server.wait(lambda _: told(server, changed) == 1)
    assert prompts(server)["mine"]["description"] == "the skill's"
