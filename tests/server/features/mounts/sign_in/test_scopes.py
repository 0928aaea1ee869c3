"""The scope of a part that one person alone is shown: it is asked for, and tells nobody else of it."""

import json
from pathlib import Path

from tests.clients.raw_client import eventually
from tests.server.auth.minted_tokens import asked
from tests.server.features.mounts.lists.test_personal_lists import count_rows
from tests.server.features.mounts.mounted import url_mount, write_config
from tests.server.features.mounts.sign_in.test_sign_in import AUTH, Scene, far, lines, scene

__all__ = ["far", "lines", "scene"]  # fixtures


def ask_reading(scene: Scene, who: str, name: str) -> tuple[int, str]:
    """Return how a call by a token for reading alone is answered, without the name."""
    token = scene.signed.token(who, granted=["tools:read"])
    response, raw, said = asked(scene.signed, token, "tools/call", {"name": name, "arguments": {}})
    return response.status, json.dumps(said or raw.decode()).replace(name, "NAME")


def test_the_scope_of_a_tool_tells_nobody_of_what_others_have(scene: Scene) -> None:
    scene.connect(scene.ada)
    scene.wait_listed(scene.ada)
    told = ask_reading(scene, "mallory", "far__of_nobody")
    assert "unknown tool" in told[1]
    assert ask_reading(scene, "mallory", "far__of_ada_there") == told
    assert ask_reading(scene, scene.ada.subject, "far__of_ada_there")[0] == 403


def test_a_tool_that_is_listed_late_needs_its_scope(scene: Scene, tmp_path: Path) -> None:
    scene.connect(scene.ada)
    scene.wait_listed(scene.ada)
    assert eventually(lambda: count_rows(scene.state) >= 1)
    write_config(tmp_path, "")
    assert eventually(lambda: not scene.list_far(scene.ada))
    write_config(tmp_path, url_mount(f"{scene.far.origin}/mcp", "far", *AUTH))
    answers = list[str]()

    def is_known() -> bool:
        answers.append(ask_reading(scene, scene.ada.subject, "far__whoami")[1])
        return "unknown tool" not in answers[-1]

    assert eventually(is_known)
    assert "scope" in answers[-1] and "ada-there" not in answers[-1]
