"""A server with mounts in the states that people meet them in: one with a tool off, one where they sign in, one that
fails. Eve is its administrator."""

import contextlib
import json
import tempfile
from collections.abc import Iterator
from pathlib import Path

from tests.clients.raw_client import eventually
from tests.server.auth.minted_tokens import Signed, signed_site
from tests.server.features.mounts.choices.chooser import Chooser
from tests.server.features.mounts.mounted import url_mount, write_config
from tests.server.features.mounts.pins.listed import ListedMount, tool
from tests.server.features.mounts.sign_in.far_sign_in import FarSignIn, far_sign_in
from tests.server.features.mounts.sign_in.test_sign_in import AUTH, Scene
from tests.servers.home_page_server import AppUser

TOOLS = {
    "read_file": "Read a file in full.",
    "write_file": "Write a file, in place of what was there.",
    "list_directory": "List what is in a folder.",
    "search_files": "Find files by a pattern.",
    "a_name_of_a_tool_that_nobody_would_choose_but_some_generator_writes_for_each_of_its_operations": "x" * 300,
    **{f"report_{number:03}": f"Write report {number}." for number in range(120)},
}


class MountedShop(Scene):
    def __init__(self, signed: Signed, far: FarSignIn) -> None:
        super().__init__(signed, far)
        self.eve = AppUser(signed, "eve", "Office")
        for who in (self.ada, self.bob, self.eve):
            self.connect(who, f"{who.name}-there")
        assert eventually(lambda: "files__read_file" in self._list_tools()), signed.site.log()
        person = Chooser(self.ada.browser())
        assert person.choose("files", ["write_file"], 2).status == 200
        assert person.switch("far", off=True).status == 200

    def _list_tools(self) -> set[str]:
        _, raw, said = self.ada.ask("tools/list", {})
        listed = said or json.loads(raw.decode().rpartition("data: ")[2])
        return {each["name"] for each in listed["result"]["tools"]}


@contextlib.contextmanager
def mounted_shop() -> Iterator[MountedShop]:
    with tempfile.TemporaryDirectory(prefix="toolgate-") as place, far_sign_in() as far:
        folder = Path(place)
        folder.chmod(0o755)
        mount = ListedMount(folder)
        mount.say(tools=[tool(name, description=text) for name, text in TOOLS.items()])
        tables = [
            mount.table.replace("mounts.far", "mounts.files"),
            url_mount(f"{far.origin}/mcp", "far", *AUTH),
            url_mount("http://127.0.0.1:9/mcp", "search", 'headers = { X-Key = "${secret:SEARCH_KEY}" }'),
        ]
        options = ("--administrators", "account:eve", *write_config(folder, *tables))
        with signed_site(folder / "server", *options) as signed:
            yield MountedShop(signed, far)
