"""Show a person each mounted server with its state, for the first page, and switch it off or on for them."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import msgspec

from toolgate.server.base.reports.page_part import ActionResult, PartRows
from toolgate.server.base.watchers import Watchers
from toolgate.server.features.mounts.choices.book import ChoiceBook
from toolgate.server.features.mounts.choices.switched_off import NOTHING, UNREADABLE, ChoiceError, SwitchedOff
from toolgate.server.features.mounts.parts.views import ServedMount

NO_SUCH = "There is no mounted server of this name."
OFF = "{} is off for you. Your apps no longer see its tools, and calls of them are refused."
ON = "{} is on for you. Your apps see its tools again."


class ShownMount(msgspec.Struct, frozen=True):
    """One mount as a person has it.

    status: "configured", "known", "running", "failed" or "gone"; `since` when, in seconds since the epoch
    code, error: of the last failure; the error is "" where the failure was another person's
    tools, off: how many are known, and how many of a mount are switched off one by one
    is_off: whether the whole mount is
    """

    name: str
    status: str
    since: float | None = None
    code: str = ""
    error: str = ""
    tools: int = 0
    off: int = 0
    is_off: bool = False


class MountsPart:
    """The mounts of one server, which `list_mounts()` returns."""

    name = "mounts"
    title = "Mounted servers"
    template = Path(__file__).with_name("mounts.html")

    def __init__(self, list_mounts: Callable[[], Sequence[ServedMount]], choices: ChoiceBook) -> None:
        self._list_mounts = list_mounts
        self._choices = choices
        self._watchers = Watchers()
        self.actions = {"mount-off": self._switch_off, "mount-on": self._switch_on}

    async def read(self, principal: str) -> PartRows:
        known = self._choices.find(principal)
        choice, served = known or NOTHING, self._list_mounts()
        names = {each.mount.name for each in served}
        gone = sorted({*choice.mounts, *(mount for mount, _ in choice.tools)} - names)
        rows = [_show(each, principal, choice) for each in served]
        if known is None:
            rows = [msgspec.structs.replace(row, code="CHOICES_UNREADABLE", error=UNREADABLE) for row in rows]
        rows += [ShownMount(name, "gone", off=_count_off(choice, name), is_off=name in choice.mounts) for name in gone]
        return PartRows(rows, is_work=False)

    def watch(self, principal: str, notify: Callable[[], None]) -> Callable[[], None]:
        return self._watchers.watch(principal, notify)

    def notify(self, principal: str) -> None:
        """A person's choice is another one, or a mount works for them again, or fails."""
        self._watchers.notify(principal)

    async def _switch_off(self, principal: str, mount: str, _fields: Mapping[str, str]) -> ActionResult:
        if mount not in {each.mount.name for each in self._list_mounts()}:
            return ActionResult(NO_SUCH, 404)
        return await self._switch(principal, mount, is_off=True)

    async def _switch_on(self, principal: str, mount: str, _fields: Mapping[str, str]) -> ActionResult:
        if mount not in (self._choices.find(principal) or NOTHING).mounts:
            return ActionResult(NO_SUCH, 404)
        return await self._switch(principal, mount, is_off=False)

    async def _switch(self, principal: str, mount: str, *, is_off: bool) -> ActionResult:
        try:
            await self._choices.change(principal, lambda choice: choice.with_mount(mount, is_off=is_off))
        except ChoiceError as error:
            return ActionResult(f"{error.text[:1].upper()}{error.text[1:]}.", 409)
        return ActionResult((OFF if is_off else ON).format(mount))


def list_tools(served: ServedMount, principal: str) -> dict[str, str]:
    """Return the own names of the tools that a person's clients are shown, with their descriptions."""
    found: dict[str, str] = {}
    for lists in served.mount.list_for(principal):
        names = {name for kind, name in served.maker.list_names(lists) if kind == "tools"}
        for tool in lists.tools:
            name, description = tool.get("name"), tool.get("description")
            if isinstance(name, str) and name in names:
                found[name] = description if isinstance(description, str) else ""
    return found


def _show(served: ServedMount, principal: str, choice: SwitchedOff) -> ShownMount:
    mount = served.mount
    state = mount.standing.find_state("" if served.per == "all" else principal)
    return ShownMount(
        mount.name,
        state.status,
        state.since,
        state.code,
        state.error,
        len(list_tools(served, principal)),
        _count_off(choice, mount.name),
        mount.name in choice.mounts,
    )


def _count_off(choice: SwitchedOff, mount: str) -> int:
    return len(choice.list_tools(mount))
