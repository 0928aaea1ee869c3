"""Keep what a mounted server lists, by what a client can do. The last good lists lie on disk, so that a cold start
shows them without starting a process. Those of single people lie in the state (`personal_lists`).

A server may repeat a secret that it was given. Lists that do are sealed on the disk. A name that does is left out: it
would stand in logs, choices and status files.
"""

import hashlib
import logging
import os
from collections import Counter
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import replace

from toolgate.server.features.mounts.config.mount_config import MountConfig
from toolgate.server.features.mounts.mount.profile import ClientProfile
from toolgate.server.features.mounts.resource_uris import is_view
from toolgate.server.features.mounts.upstream.errors import find_repeated
from toolgate.server.features.mounts.upstream.session import UpstreamSession
from toolgate.server.state.keys.sealed_state import Sealer, SealError
from toolgate.tools.api.regular_file import read_regular
from toolgate.tools.api.text.json_text import JsonError, decode_json

VERSION = 1  # of the files
MAX_PROFILES = 16  # kinds of clients whose lists are kept
MAX_OF_PEOPLE = 10_000  # kinds of clients, each of one person
MAX_PERSONAL = 256  # different lists of these: most people have the same
MAX_NAME = 1_024  # characters of what names an item that has a pin
MAX_FILE = 64 * 2**20  # bytes
SEALED = "lists-of-all"  # what a sealed value is bound to
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


class SharedLists(msgspec.Struct):
    """Lists that are nobody's alone, and the secrets that they repeat, by profile."""

    by_profile: dict[str, MountLists] = {}
    hidden: dict[str, list[str]] = {}


class KeptLists(msgspec.Struct):
    """What a file holds: `by_profile`, or `sealed` SharedLists in its place."""

    version: int
    digest: str
    by_profile: dict[str, MountLists]
    sealed: str = ""


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


def drop_secret_names(lists: MountLists, mount: str, secrets: Collection[str]) -> MountLists:
    """Return the lists without items whose names repeat secrets."""
    fields: dict[str, Items] = {field: getattr(lists, field) for field, _ in NAMED}
    named = [item.get(key) for field, key in NAMED for item in fields[field]]
    found = find_repeated(named, secrets)
    if not found:
        return lists
    kept = {field: [item for item in fields[field] if not find_repeated(item.get(key), found)] for field, key in NAMED}
    left = len(named) - sum(map(len, kept.values()))
    log.warning("mount %s: %d items are left out: their names repeat a secret of the mount", mount, left)
    return replace(lists, **kept)


def list_repeated(lists: MountLists, secrets: Collection[str]) -> Collection[str]:
    """Return the secrets that the lists repeat."""
    return find_repeated([lists.instructions, *(getattr(lists, field) for field, _ in NAMED)], secrets)


def read_kept(file: Path) -> KeptLists:
    """Return what a file holds. Raises OSError and JsonError."""
    return decode_json(read_regular(file, MAX_FILE), KeptLists)


class ListStore:
    """The lists of one mount. Those of another command or URL of the same name are not its own: `server` is their
    digest. What one person alone is shown is not written to the file; what repeats a secret is, by a `sealer`."""

    def __init__(self, folder: Path, config: MountConfig, sealer: Sealer | None = None) -> None:
        self._file = folder / f"{config.name}.json"
        self.server = _digest(config)
        self._by_profile: dict[str, MountLists] = {}
        self._personal: dict[str, MountLists] = {}
        self._sealer = sealer
        self.hidden: dict[str, list[str]] = {}  # by profile: secrets that lists of all repeat

    def load(self) -> None:
        """Read the file, if it is this mount's. Blocks."""
        try:
            kept = read_kept(self._file)
            if (kept.version, kept.digest) == (VERSION, self.server):
                shared = self._unseal(kept.sealed) if kept.sealed else SharedLists(kept.by_profile)
                self._by_profile, self.hidden = shared.by_profile, shared.hidden
        except FileNotFoundError:
            pass
        except (OSError, JsonError, SealError, msgspec.ValidationError) as error:  # the key may be lost
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

    def put(self, profile: ClientProfile, lists: MountLists, hidden: Collection[str] = ()) -> bool:
        """Take new lists with the secrets that they repeat, and return whether they differ. An empty list does not
        replace one that is not."""
        kept, most = self._choose(profile), MAX_OF_PEOPLE if profile.principal else MAX_PROFILES
        key = profile.key.decode()
        before = kept.pop(key, None)
        if before is not None and before.tools and not (lists.tools or lists.prompts or lists.resources):
            lists = before
        kept[key] = next((known for known in self.distinct if known == lists), lists)
        _make_room(kept, kept[key], most)
        is_new = lists != before
        if not profile.principal:
            repeated = sorted({*hidden, *(() if is_new else self.hidden.get(key, ()))})
            others = {name: each for name, each in self.hidden.items() if name in kept and name != key}
            self.hidden = {**others, key: repeated} if repeated else others
        return is_new

    def _choose(self, profile: ClientProfile) -> dict[str, MountLists]:
        return self._personal if profile.principal else self._by_profile

    def save(self) -> None:
        """Write the file. Blocks."""
        try:
            kept = KeptLists(VERSION, self.server, *self._seal())
        except (OSError, RecursionError) as error:  # of the file of the key; of what is nested too deeply
            log.warning("the lists of mount %s can't be kept: %s", self._file.stem, error)
            return
        data = msgspec.json.encode(kept)
        part = self._file.with_suffix(f".{os.getpid()}-{os.urandom(4).hex()}.part")  # several may be written at once
        try:
            self._file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
            with open(descriptor, "wb") as file:
                file.write(data)
            part.replace(self._file)
        except OSError as error:
            log.warning("the lists of a mount can't be kept in %s: %s", self._file, error)

    def _seal(self) -> tuple[dict[str, MountLists], str]:
        """Return the lists as they may be written, or sealed if any of them repeats a secret. Raises OSError."""
        if not self.hidden:
            return self._by_profile, ""
        shared = SharedLists(self._by_profile, self.hidden)
        return {}, self._sealer.seal(shared, "", [SEALED, self.server]) if self._sealer is not None else ""

    def _unseal(self, sealed: str) -> SharedLists:
        """Raises SealError, msgspec.ValidationError and OSError."""
        if self._sealer is None:
            return SharedLists()
        return msgspec.convert(self._sealer.unseal(sealed, "", [SEALED, self.server]), SharedLists)


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
