"""Say what mounts keep in a state: lists, what servers say of them, and what is installed for them."""

from collections.abc import Iterator
from functools import partial
from pathlib import Path

from toolgate.server.app.state_damage import StateDamage, check_file, list_folder
from toolgate.server.app.state_part import StatePart
from toolgate.server.features.mounts.control import FOLDER, read_status
from toolgate.server.features.mounts.install.installation import FOLDER as INSTALLED
from toolgate.server.features.mounts.install.installation import MAX_RECORD, RECORD, InstalledProgram
from toolgate.server.features.mounts.lists.list_store import read_kept
from toolgate.server.state.store import Store
from toolgate.tools.api.regular_file import read_regular
from toolgate.tools.api.text.json_text import decode_json


class MountsState(StatePart):
    """The state of a server with mounts. All but what is installed is written again by itself."""

    async def end_person(self, store: Store, principal: str) -> None:
        from toolgate.server.features.mounts.choices.rows import remove_choice
        from toolgate.server.features.mounts.kept_secrets.rows import remove_secrets  # start-up: it loads the tables
        from toolgate.server.features.mounts.lists.rows import remove_lists
        from toolgate.server.features.mounts.sign_in.rows import orphan_connections

        await store.transact(partial(remove_lists, principal=principal), alone="mounts")
        await store.transact(partial(remove_secrets, principal=principal), alone="secrets")
        await store.transact(partial(remove_choice, principal=principal), alone="mounts")
        await store.transact(partial(orphan_connections, principal=principal), alone="mounts")

    def find_damage(self, state: Path) -> Iterator[StateDamage]:
        for file in list_folder(state / FOLDER):
            if file.suffix == ".json":
                yield from check_file(file, partial(read_kept, file))
        for file in list_folder(state / FOLDER / "status"):
            yield from check_file(file, partial(read_status, file))
        for place in list_folder(state / INSTALLED):
            record = place / RECORD
            remedy = f"install it again: toolgate mount test {place.name}"
            yield from check_file(record, partial(_read_installed, record), remedy, heals=False)


def _read_installed(record: Path) -> InstalledProgram:
    return decode_json(read_regular(record, MAX_RECORD), InstalledProgram)
