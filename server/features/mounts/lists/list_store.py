"""Keep what a mounted server lists, by what a client can do. The last good lists lie on disk, so that a cold start
shows them without starting a process. Those of single people lie in the state (`personal_lists`)."""

import hashlib
import logging
import os
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import replace

from toolgate.server.features.mounts.config.mount_config import MountConfig
from toolgate.server.features.mounts.mount.profile import ClientProfile
from toolgate.server.features.mounts.resource_uris import is_view
from toolgate.server.features.mounts.upstream.session import UpstreamSession
from toolgate.tools.api.text.json_text import JsonError, decode_json
from toolgate.tools.workspace.files.state_file import read_regular

VERSION = 1  # of the files
MAX_PROFILES = 16  # kinds of clients whose lists are kept
MAX_OF_PEOPLE = 10_000  # kinds of clients, each of one person
MAX_PERSONAL = 256  # different lists of these: most people have the same
MAX_NAME = 1_024  # characters of what names an item that has a pin
MAX_FILE = 64 * 2**20  # bytes
SKILLS = "io.modelcontextprotocol/skills"  # the extension of servers that have them
LISTS = (  # capability or extension of the mounted server → method, and its field
    ("tools", "tools/list", "tools"),
    ("prompts", "prompts/list", "prompts"),
    ("resources", "resources/list", "resources"),
    ("resources", "resources/templates/list", "resourceTemplates"),
    (SKILLS, "skills/list", "skills"),
)
NAMED = (("tools", "name"), ("prompts", "name"), ("resources", "uri"), ("templates", "uriTemplate"), ("skills", "uri"))

Items = list[dict[str, Any]]

log = logging.getLogger("toolgate.mounts")


class MountLists(msgspec.Struct, frozen=True):
    """What a mounted server lists, each item as it came, and what it says of itself. `ttl`: seconds that it says its
    lists hold; None: until it tells of a change."""

    tools: Items = []
    prompts: Items = []
    resources: Items = []
    templates: Items = []
    skills: Items = []
    instructions: str = ""
    revision: str = ""
    ttl: float | None = None


class KeptLists(msgspec.Struct):
    version: int
    digest: str
    by_profile: dict[str, MountLists]


async def fetch_lists(session: UpstreamSession) -> MountLists:
    """Return all that the mounted server lists. Raises MountError, UpstreamRefusedError."""
    info = session.info
    found: dict[str, Items] = {}
    holds: list[float] = []
    extensions = info.capabilities.get("extensions")
    declared = {*info.capabilities, *(extensions if isinstance(extensions, dict) else ())}
    for capability, method, field in LISTS:
        found[field] = []
        if capability in declared:
            listed = await session.list_all(method, field)
            found[field] = listed.items
            holds += [] if listed.ttl is None else [listed.ttl]
    return MountLists(
        tools=found["tools"],
        prompts=found["prompts"],
        resources=found["resources"],
        templates=found["resourceTemplates"],
        skills=found["skills"],
        instructions=info.instructions,
        revision=info.revision,
        ttl=min(holds, default=None),
    )


def drop_long_names(lists: MountLists, mount: str) -> MountLists:
    """Return the lists without items whose names are too long to be kept. A plain resource has no pin, and stays."""
    fields: dict[str, Items] = {field: getattr(lists, field) for field, _ in NAMED}
    kept = {
        field: [item for item in fields[field] if not _is_too_long(item.get(named), field)] for field, named in NAMED
    }
    left = sum(len(fields[field]) - len(kept[field]) for field in fields)
    if not left:
        return lists
    log.warning("mount %s: %d items are left out: their names are longer than %d characters", mount, left, MAX_NAME)
    return replace(lists, **kept)


def read_kept(file: Path) -> KeptLists:
    """Return what a file holds. Raises OSError and JsonError."""
    return decode_json(read_regular(file, MAX_FILE), KeptLists)


class ListStore:
    """The lists of one mount. Those of another command or URL of the same name are not its own: `server` is their
    digest. What one person alone is shown is not written to the file."""

    def __init__(self, folder: Path, config: MountConfig) -> None:
        self._file = folder / f"{config.name}.json"
        self.server = _digest(config)
        self._by_profile: dict[str, MountLists] = {}
        self._personal: dict[str, MountLists] = {}

    def load(self) -> None:
        """Read the file, if it is this mount's. Blocks."""
        try:
            kept = read_kept(self._file)
            if (kept.version, kept.digest) == (VERSION, self.server):
                self._by_profile = kept.by_profile
        except FileNotFoundError:
            pass
        except (OSError, JsonError) as error:
            log.warning("the lists in %s can't be read: %s", self._file, error)

    def find(self, profile: ClientProfile) -> MountLists | None:
        return self._choose(profile).get(profile.key.decode())

    @property
    def is_empty(self) -> bool:
        return not self._by_profile and not self._personal

    @property
    def all(self) -> Mapping[str, MountLists]:
        """The lists by profile."""
        return {**self._personal, **self._by_profile}

    @property
    def common(self) -> list[MountLists]:
        """The lists that are nobody's alone, the latest last."""
        return list(self._by_profile.values())

    @property
    def personal(self) -> list[MountLists]:
        """The lists of single persons that are not those of all, each once, the latest last."""
        shared = set(map(id, self._by_profile.values()))
        return [lists for lists in self.distinct if id(lists) not in shared]

    def of_principal(self, principal: str) -> list[MountLists]:
        """Return the lists that are one person's alone."""
        return [lists for key, lists in self._personal.items() if key.endswith(f"}}{principal}")]

    def forget(self, principal: str) -> None:
        """Forget the lists that are one person's alone."""
        self._personal = {key: lists for key, lists in self._personal.items() if not key.endswith(f"}}{principal}")}

    @property
    def distinct(self) -> list[MountLists]:
        """The lists, those of single persons first and the latest last; equal ones, as most people have, once."""
        latest_first = reversed([*self.all.values()])
        return list({id(lists): lists for lists in latest_first}.values())[::-1]

    def put(self, profile: ClientProfile, lists: MountLists) -> bool:
        """Take new lists, and return whether they differ. An empty list does not replace one that is not."""
        kept, most = self._choose(profile), MAX_OF_PEOPLE if profile.principal else MAX_PROFILES
        key = profile.key.decode()
        before = kept.pop(key, None)
        if before is not None and before.tools and not (lists.tools or lists.prompts or lists.resources):
            lists = before
        kept[key] = next((known for known in self.distinct if known == lists), lists)
        _make_room(kept, kept[key], most)
        return lists != before

    def _choose(self, profile: ClientProfile) -> dict[str, MountLists]:
        return self._personal if profile.principal else self._by_profile

    def save(self) -> None:
        """Write the file. Blocks."""
        data = msgspec.json.encode(KeptLists(VERSION, self.server, self._by_profile))
        part = self._file.with_suffix(f".{os.getpid()}-{os.urandom(4).hex()}.part")  # several may be written at once
        try:
            self._file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
            with open(descriptor, "wb") as file:
                file.write(data)
            part.replace(self._file)
        except OSError as error:
            log.warning("the lists of a mount can't be kept in %s: %s", self._file, error)


def _make_room(kept: dict[str, MountLists], new: MountLists, most: int) -> None:
    """Remove the oldest, and of too many different lists the one that the fewest have, but not the new one."""
    counts = Counter(map(id, kept.values()))
    if len(counts) > MAX_PERSONAL:
        del counts[id(new)]
        rarest = min(counts, key=counts.__getitem__)  # of equals the oldest
        for key in [key for key, lists in kept.items() if id(lists) == rarest]:
            del kept[key]
    while len(kept) > most:
        del kept[next(iter(kept))]


def _is_too_long(name: object, field: str) -> bool:
    return isinstance(name, str) and len(name) > MAX_NAME and (field != "resources" or is_view(name))


def _digest(config: MountConfig) -> str:
    """Return what names the server behind a mount, without its secrets."""
    place = (config.command, config.args, str(config.cwd or ""), config.url, config.protocol)
    return hashlib.sha256(msgspec.json.encode(place)).hexdigest()
