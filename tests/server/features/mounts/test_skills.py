"""Skills of mounted servers (SEP-2640): listed after ours as the servers have them, and read under the URIs named."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.clients.raw_client import COMMAND, STATELESS, Refusal, Server, eventually, served
from tests.interop.node import FOLDER
from tests.server.features.mounts.mounted import command_mount, write_config
from tests.server.features.mounts.test_real_servers import PYPI

Start = Callable[..., Server]
SKILL = "---\nname: {name}\ndescription: Look after the light.\n---\n# Light\n"
FASTMCP = [str(PYPI), str(FOLDER / "frameworks" / "fastmcp_skills.py")]
LAMPS = "skill://lamps/SKILL.md"


def _write_skill(folder: Path, name: str = "light") -> str:
    """Write a skill with a file below it, and return the folder of skills."""
    (folder / name / "references").mkdir(parents=True)
    (folder / name / "SKILL.md").write_text(SKILL.format(name=name))
    (folder / name / "references" / "wick.md").write_text("Trim the wick.\n")
    return str(folder)


def _table(name: str, command: str, *args: str) -> str:
    return f"[mounts.{name}]\ncommand = {json.dumps(command)}\nargs = {json.dumps(args)}\n"


def _inner(name: str, tmp_path: Path, *options: str) -> str:
    """Return the table of a mount that is a Toolgate of its own."""
    return _table(name, COMMAND, "--state", str(tmp_path / f"state-{name}"), *options)


def _list_skills(server: Server) -> dict[str, dict[str, Any]]:
    """Return the entries by URI, page by page."""
    found: dict[str, dict[str, Any]] = {}
    params: dict[str, Any] = {}
    while True:
        page = server.request("skills/list", params)
        found |= {entry["uri"]: entry for entry in page["skills"]}
        if "nextCursor" not in page:
            return found
        params = {"cursor": page["nextCursor"]}


def _wait_skills(server: Server, *uris: str) -> dict[str, dict[str, Any]]:
    """Return the entries once those of the mounts are there."""
    assert eventually(lambda: set(uris) <= set(_list_skills(server))), server.log()
    return _list_skills(server)


def _without_prefix(value: Any, mount: str) -> Any:
    return json.loads(json.dumps(value).replace(f"{mount}+skill://", "skill://"))


def _forget_times(result: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in result.items() if name != "_meta"}


def test_a_skill_of_a_mount_is_listed_and_read_as_the_server_has_it(start: Start, tmp_path: Path) -> None:
    skills = _write_skill(tmp_path / "skills")
    (tmp_path / "alone").mkdir()
    server = start(*write_config(tmp_path, _inner("far", tmp_path, "--skills", skills)), revision=STATELESS)
    own, uri = "skill://light/SKILL.md", "far+skill://light/SKILL.md"
    found = _wait_skills(server, uri)
    assert own not in found and "skill://toolgate-tools/SKILL.md" in found  # ours come first, under their own URIs
    with served(tmp_path / "alone", "--skills", skills, revision=STATELESS) as alone:
        assert _without_prefix(found[uri], "far") == _list_skills(alone)[own]
        for method, far, bare in (
            ("skills/get", uri, own),
            ("resources/read", uri, own),
            ("resources/read", "far+skill://light/references/wick.md", "skill://light/references/wick.md"),
            ("resources/directory/read", "far+skill://light", "skill://light"),
            ("resources/directory/read", "far+skill://light/references/", "skill://light/references/"),
        ):
            through = _forget_times(server.request(method, {"uri": far}))
            assert _without_prefix(through, "far") == _forget_times(alone.request(method, {"uri": bare})), (method, far)
            assert far.rstrip("/") in json.dumps(through)
    templates = {each["uriTemplate"] for each in server.request("resources/templates/list")["resourceTemplates"]}
    assert "far+skill://{name}/{+path}" in templates and "far+skill://light/{+path}" not in templates
    for method in ("skills/get", "resources/directory/read"):
        with pytest.raises(Refusal):
            server.request(method, {"uri": "far+skill://nobody/SKILL.md"})
        with pytest.raises(Refusal):
            server.request(method, {"uri": own})  # it is not ours


def test_of_two_mounts_with_one_skill_each_is_read_at_its_own(start: Start, tmp_path: Path) -> None:
    tables = []
    for name in ("one", "two"):
        skills = _write_skill(tmp_path / name)
        (tmp_path / name / "light" / "references" / "wick.md").write_text(name)
        tables.append(_inner(name, tmp_path, "--skills", skills))
    server = start("--tools", "none", *write_config(tmp_path, *tables), revision=STATELESS)
    _wait_skills(server, "one+skill://light/SKILL.md", "two+skill://light/SKILL.md")
    for name in ("one", "two"):
        uri = f"{name}+skill://light/references/wick.md"
        assert server.request("resources/read", {"uri": uri})["contents"] == [
            {"uri": uri, "mimeType": "text/markdown", "text": name}
        ]


def test_the_patterns_of_a_mount_choose_its_skills(start: Start, tmp_path: Path) -> None:
    skills = _write_skill(tmp_path / "skills")
    _write_skill(tmp_path / "skills", "dark")
    table = _inner("far", tmp_path, "--skills", skills) + 'tools = ["!skill://dark/*"]\n'
    server = start(*write_config(tmp_path, table), revision=STATELESS)
    assert "far+skill://dark/SKILL.md" not in _wait_skills(server, "far+skill://light/SKILL.md")


def test_a_server_without_skills_is_asked_for_none(start: Start, tmp_path: Path) -> None:
    server = start(*write_config(tmp_path, command_mount("modern")), revision=STATELESS)
    assert eventually(lambda: any(tool["name"] == "far__echo" for tool in server.request("tools/list")["tools"]))
    assert set(_list_skills(server)) == {"skill://toolgate-tools/SKILL.md"}


@pytest.mark.soak
def test_skills_of_fastmcp_equal_what_it_gives_alone(start: Start, tmp_path: Path) -> None:
    command, *args = FASTMCP
    (tmp_path / "alone").mkdir()
    server = start(*write_config(tmp_path, _table("far", command, *args)), revision=STATELESS)
    entry = _wait_skills(server, f"far+{LAMPS}")[f"far+{LAMPS}"]
    with served(tmp_path / "alone", command=FASTMCP, revision=STATELESS) as alone:
        assert _without_prefix(entry, "far") == _list_skills(alone)[LAMPS]
        for method, uri in (
            ("skills/get", LAMPS),
            *(("resources/read", each["uri"]) for each in _list_skills(alone)[LAMPS]["resources"]),
        ):
            through = _forget_times(server.request(method, {"uri": f"far+{uri}"}))
            assert _without_prefix(through, "far") == _forget_times(alone.request(method, {"uri": uri}))
        alone.kill()
