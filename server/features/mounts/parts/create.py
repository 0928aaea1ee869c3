"""Make parts of what a mounted server lists. An item that can't be shown is left out, and the log says so once."""

import logging
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from toolgate.server.base.principals.name_patterns import is_chosen
from toolgate.server.features.mounts.config.mount_config import MountConfig
from toolgate.server.features.mounts.lists.list_store import MountLists
from toolgate.server.features.mounts.mount.requests import RequestForwarder
from toolgate.server.features.mounts.parts.connect_tool import CONNECT, HINTS, NO_ARGUMENTS, ConnectRelay
from toolgate.server.features.mounts.parts.relays import ORIGINAL, PromptRelay, ResourceRelay, ToolRelay
from toolgate.server.features.mounts.parts.rewriting import UriRewriter
from toolgate.server.features.mounts.resource_uris import is_view, normalise_uri
from toolgate.tools.api.function import Function
from toolgate.tools.api.prompt import Prompt
from toolgate.tools.api.registry import Part
from toolgate.tools.api.resource import Resource
from toolgate.tools.api.text.uris import check_uri
from toolgate.tools.api.tool import Tool, ToolAnnotations

MAX_URI = 8_192
MANIFEST = "/SKILL.md"  # the end of a skill's URI
Name = Callable[[str, str], str]  # kind and original name → the name that is shown

log = logging.getLogger("toolgate.mounts")


class PartMaker:
    """Makes the parts of one mount."""

    def __init__(self, config: MountConfig, forwarder: RequestForwarder) -> None:
        self._config = config
        self._forwarder = forwarder
        self._function = Function(_never_called, f"mount {config.name}")
        self._told: set[str] = set()

    def create_parts(self, lists: MountLists, name: Name, rewriter: UriRewriter) -> Iterator[Part]:
        """Yield the parts of what is listed and served. `name(kind, original)` returns what an item is called here."""
        yield from self._create_all(lists.tools, "name", lambda item: self._create_tool(item, name, rewriter))
        yield from self._create_all(lists.prompts, "name", lambda item: self._create_prompt(item, name, rewriter))
        yield from self._create_all(lists.resources, "uri", lambda item: self._create_resource(item, rewriter))
        yield from self._create_all(lists.templates, "uriTemplate", lambda item: self._create_resource(item, rewriter))
        yield from self._create_all(lists.skills, "uri", lambda item: self._create_skill_files(item, rewriter))

    def create_connect_tool(self, shown: str, *, is_listed: bool) -> Tool:
        """Return what has a person sign in at the mounted server, under this name. A plan does not hold it."""
        relay = ConnectRelay(self._config, self._forwarder, shown, self._count_tools)
        return Tool(
            self._function,
            **self._describe(shown, relay.wire),
            relay=relay,
            annotations=HINTS,
            raw_input={**NO_ARGUMENTS},
            as_task=True,
            in_plan=True,
            mount=self._config.name,
            is_listed=is_listed,
        )

    @property
    def has_connect_tool(self) -> bool:
        """Whether people sign in there, and the patterns choose what has them do so."""
        return self._forwarder.signs_in and self._serves(CONNECT)

    @property
    def offers_connect_tool(self) -> bool:
        """Whether this server has a page where they sign in, too."""
        return self.has_connect_tool and self._forwarder.has_sign_in_page

    def _count_tools(self, lists: MountLists) -> int:
        return len({name for kind, name in self.list_names(lists) if kind == "tools"})

    def list_names(self, lists: MountLists) -> Iterator[tuple[str, str]]:
        """Yield the kind and the original name of each tool and prompt that is served."""
        for kind, items in (("tools", lists.tools), ("prompts", lists.prompts)):
            for item in items:
                original = item.get("name")
                if isinstance(original, str) and original and self._serves(original):
                    yield kind, original

    def list_uris(self, lists: MountLists) -> Iterator[str]:
        """Yield the URIs and templates that are served, those of skills' files, too."""
        for skill in self._find_skills(lists):
            yield _name_files(skill)
        for field, items in (("uri", lists.resources), ("uriTemplate", lists.templates)):
            for item in items:
                original = item.get(field)
                if isinstance(original, str) and self._serves(original):
                    yield original

    def list_skills(self, lists: MountLists, rewriter: UriRewriter) -> Iterator[dict[str, Any]]:
        """Yield the entries of the skills that are served."""
        for skill in self._find_skills(lists):
            yield rewriter.rewrite_skill(skill)

    def _find_skills(self, lists: MountLists) -> Iterator[dict[str, Any]]:
        for skill in lists.skills:
            if _is_skill(skill.get("uri")) and self._serves(skill["uri"]):
                yield skill

    def _create_all(
        self, items: list[dict[str, Any]], named: str, create: Callable[[dict[str, Any]], Part]
    ) -> Iterator[Part]:
        seen: set[str] = set()
        for item in items:
            original = item.get(named)
            own = original if isinstance(original, str) else ""
            own = normalise_uri(own) if named == "uri" else own
            if not isinstance(original, str) or not own or own in seen:
                self._leave_out(original, "has no name of its own")
                continue
            seen.add(own)
            if not self._serves(original):
                continue
            try:
                part = create(item)
            except (TypeError, ValueError, RecursionError) as error:
                self._leave_out(original, f"can't be shown: {error}")
            else:
                yield part

    def _create_tool(self, item: dict[str, Any], name: Name, rewriter: UriRewriter) -> Tool:
        schema = item.get("inputSchema")
        if not isinstance(schema, dict):
            raise TypeError("its input schema is no object")
        original = item["name"]
        shown = name("tools", original)
        wire, is_task = _read_execution(_rename(rewriter.rewrite_item(item), shown))
        return Tool(
            self._function,
            **self._describe(shown, item),
            relay=ToolRelay(self._forwarder, original, wire, rewriter, is_task=is_task),
            annotations=self._judge(original),
            raw_input=schema,
            as_task=True,
            mount=self._config.name,
        )

    def _create_prompt(self, item: dict[str, Any], name: Name, rewriter: UriRewriter) -> Prompt:
        original = item["name"]
        shown = name("prompts", original)
        relay = PromptRelay(self._forwarder, original, _rename(item, shown), rewriter)
        return Prompt(self._function, **self._describe(shown, item), relay=relay)

    def _create_resource(self, item: dict[str, Any], rewriter: UriRewriter) -> Resource:
        if "uri" in item and "uriTemplate" in item:
            raise ValueError("it has a URI and a template")
        original = item["uriTemplate" if "uriTemplate" in item else "uri"]
        uri = rewriter.expose(original)
        if len(uri) > MAX_URI:
            raise ValueError("its URI is too long")
        wire = rewriter.rewrite_item(item)
        if uri != original:
            wire["_meta"] = {**(item["_meta"] if isinstance(item.get("_meta"), dict) else {}), ORIGINAL: original}
        relay = ResourceRelay(self._forwarder, original, wire, rewriter)
        kind = item.get("mimeType")
        part = Resource(
            self._function,
            **self._describe(_word(item.get("name")) or uri, item),
            relay=relay,
            uri=uri,
            mime_type=kind if isinstance(kind, str) else None,
        )
        if part.is_template != ("uriTemplate" in item):
            raise ValueError("its URI has the form of the other kind")
        if part.is_template:
            _ = part.template
        else:
            check_uri(uri)
        return part

    def _create_skill_files(self, item: dict[str, Any], rewriter: UriRewriter) -> Resource:
        """Return what reads the files of a skill: a server need not list them as resources."""
        if not _is_skill(item["uri"]):
            raise ValueError(f"its URI is that of a view, or does not end in {MANIFEST}")
        original = _name_files(item)
        uri = rewriter.expose(original)
        relay = ResourceRelay(self._forwarder, original, {"uriTemplate": uri}, rewriter)
        part = Resource(
            self._function,
            **self._describe(uri, item),
            relay=relay,
            uri=uri,
            mime_type=None,
            is_listed=False,
        )
        _ = part.template
        return part

    def _describe(self, shown: str, item: Mapping[str, Any]) -> dict[str, Any]:
        title, description = _word(item.get("title")), _word(item.get("description"))
        return {"name": shown, "title": title or shown, "description": description, "scope": self._config.scope}

    def is_held_by_plan(self, original: str) -> bool:
        """Return whether an active plan refuses a tool."""
        return not self._judge(original).read_only

    def _judge(self, original: str) -> ToolAnnotations:
        """Return what the operator says of a tool: what it claims of itself opens nothing."""
        is_harmless = bool(self._config.read_only) and is_chosen(original, self._config.read_only)
        return ToolAnnotations(
            read_only=is_harmless, destructive=not is_harmless, idempotent=is_harmless, open_world=True
        )

    def _serves(self, original: str) -> bool:
        return is_chosen(original, self._config.tools)

    def _leave_out(self, original: object, why: str) -> None:
        told = f"{str(original)[:100]!r} of mount {self._config.name} {why}: it is left out"
        if told not in self._told:
            self._told.add(told)
            log.warning("%s", told)


def _rename(item: Mapping[str, Any], shown: str) -> dict[str, Any]:
    """Return the item under the name that is shown; its own stands in its `_meta`."""
    if item["name"] == shown:
        return {**item}
    meta = item.get("_meta")
    return {**item, "name": shown, "_meta": {**(meta if isinstance(meta, dict) else {}), ORIGINAL: item["name"]}}


def _read_execution(item: Mapping[str, Any]) -> tuple[Mapping[str, Any], bool]:
    """Return the tool as it is shown, and whether it runs as a task only: that is done here, so clients are not told
    to."""
    execution = item.get("execution")
    if not isinstance(execution, dict) or execution.get("taskSupport") != "required":
        return item, False
    left = {name: value for name, value in execution.items() if name != "taskSupport"}
    return {
        name: left if name == "execution" else value for name, value in item.items() if left or name != "execution"
    }, True


def _is_skill(uri: object) -> bool:
    return isinstance(uri, str) and uri.endswith(MANIFEST) and "{" not in uri and not is_view(uri)


def _name_files(skill: Mapping[str, Any]) -> str:
    """Return the template of the URIs of a skill's files."""
    return f"{skill['uri'].removesuffix(MANIFEST)}/{{+path}}"


def _word(value: Any) -> str:
    return value if isinstance(value, str) else ""


async def _never_called() -> None:
    raise AssertionError("a part of a mounted server was called here")
