"""List the features of each published revision; only this module compares versions.

Source: the schema and changelog of each revision in the MCP specification.
"""

import msgspec


class Revision(msgspec.Struct, frozen=True, kw_only=True):
    """A column is a feature: true from the revision that added it, false again if one dropped it."""

    name: str
    stateless: bool = False  # every request carries revision, client and capabilities in `_meta`; no initialize
    batches: bool = False
    tool_annotations: bool = True
    audio: bool = True
    progress_messages: bool = True
    titles: bool = True  # `title` on tools, prompts, resources and implementations
    structured: bool = True  # outputSchema and structuredContent, objects only
    any_structured: bool = False  # … of any JSON type
    resource_links: bool = True
    elicitation: bool = True
    multi_select: bool = True  # multi-select enums in elicitation
    option_descriptions: bool = False  # in enums of elicitation: no revision has them, the server's page shows them
    url_elicitation: bool = False  # elicitation by a link
    elicitation_ids: bool = False  # … which has an id, and the client is told when it is done
    resumable: bool = False  # streams begin with an event id; the server may close them, and the client polls
    completions: bool = True  # declared as a capability
    part_meta: bool = True  # `_meta` on tools, prompts and resources
    icons: bool = False
    extensions: bool = False  # capabilities.extensions
    result_types: bool = False  # `resultType`, and serverInfo in the `_meta` of a result
    caching: bool = False  # ttlMs and cacheScope on lists and on resources/read

    def has(self, feature: str) -> bool:
        """Return whether `feature`, a column of this table, is true. Raises AttributeError for an unknown one."""
        return bool(getattr(self, feature))


REVISIONS = {
    revision.name: revision
    for revision in (
        Revision(
            name="2024-11-05",
            tool_annotations=False,
            audio=False,
            progress_messages=False,
            completions=False,
            part_meta=False,
            titles=False,
            structured=False,
            resource_links=False,
            elicitation=False,
            multi_select=False,
        ),
        Revision(
            name="2025-03-26",
            batches=True,
            part_meta=False,
            titles=False,
            structured=False,
            resource_links=False,
            elicitation=False,
            multi_select=False,
        ),
        Revision(name="2025-06-18", multi_select=False),
        Revision(name="2025-11-25", url_elicitation=True, elicitation_ids=True, resumable=True, icons=True),
        Revision(
            name="2026-07-28",
            stateless=True,
            any_structured=True,
            url_elicitation=True,
            icons=True,
            extensions=True,
            result_types=True,
            caching=True,
        ),
    )
}

SUPPORTED = tuple(reversed(REVISIONS))  # newest first, as a client reads it
STATELESS = {name: revision for name, revision in REVISIONS.items() if revision.stateless}  # revisions by name
WITH_SESSION = {name: revision for name, revision in REVISIONS.items() if not revision.stateless}
NEWEST_WITH_SESSION = list(WITH_SESSION.values())[-1]


def negotiate(requested: object) -> Revision:
    """Return the revision that answers an `initialize`: the requested one, or the newest of that era."""
    if isinstance(requested, str) and requested in WITH_SESSION:
        return WITH_SESSION[requested]
    return NEWEST_WITH_SESSION
