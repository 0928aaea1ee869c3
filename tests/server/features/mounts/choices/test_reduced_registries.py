"""What people are shown who have switched something off takes no more memory than its bound."""

from functools import partial
from pathlib import Path

from tests.clients.raw_client import STATELESS
from tests.clients.raw_http_client import site, spoken
from tests.server.auth.sign_in_server import Browser
from tests.server.features.mounts.choices.chooser import Chooser
from tests.server.features.mounts.mounted import wait_listed, write_config
from tests.server.features.mounts.pins.listed import ListedMount, tool
from toolgate.server.features.mounts.choices.switched_off import NOTHING, SwitchedOff
from toolgate.server.features.mounts.parts.reduced_registries import ReducedRegistries
from toolgate.tools.api.registry import Registry

CHOICES = 40
LIST = 60 * 20_000  # bytes of the list of tools, which each choice has once


def test_choices_that_are_over_leave_nothing(tmp_path: Path) -> None:
    mount = ListedMount(tmp_path, "modern", 'on_change = "allow"')
    mount.say(tools=[tool(f"t{number:02}", description="x" * (LIST // 60)) for number in range(60)])
    with (
        site(tmp_path, "--auth", "none", *write_config(tmp_path, mount.table)) as listening,
        spoken(listening, "http", revision=STATELESS) as client,
    ):
        assert "far__t00" in wait_listed(client)
        person = Chooser(Browser(listening.port, {"accept": "text/html"}))
        before = read_memory(listening.process.pid)
        for number in range(1, CHOICES + 1):
            assert person.choose("far", [f"t{bit:02}" for bit in range(6) if number >> bit & 1]).status == 200
            wait_listed(client)
        assert read_memory(listening.process.pid) - before < CHOICES * LIST / 2


def read_memory(pid: int) -> int:
    """Return the bytes of memory that a process holds."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmRSS"))


def test_all_kinds_of_clients_share_one_bound() -> None:
    kept, wholes, made = ReducedRegistries(most=2), [Registry(), Registry()], list[str]()
    off = [NOTHING.with_mount(name, is_off=True) for name in ("a", "b")]

    def find(whole: int, choice: SwitchedOff) -> bool:
        """Return whether it had to be made."""
        count = len(made)
        kept.find(wholes[whole], choice, partial(create, made))
        return len(made) > count

    assert find(0, off[0]) and find(1, off[0])
    assert not find(0, off[0])
    assert find(1, off[1]), "in the place of what was used longest ago"
    assert not find(0, off[0]) and find(1, off[0])
    kept.drop(off[0])
    assert find(0, off[0]) and find(1, off[0])


def create(made: list[str]) -> Registry:
    made.append("one")
    return Registry()
