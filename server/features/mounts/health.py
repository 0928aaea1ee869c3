"""Describe the mounts for the first page. A mount that fails takes nothing else down: the server stays ready.

A failure is told by its code: its sentence may quote what belongs to one person.
"""

from collections.abc import Sequence

from toolgate.server.base.reports.health import MemberHealth, PartHealth
from toolgate.server.features.mounts.mount.mount import Mount


def describe_mounts(mounts: Sequence[Mount]) -> PartHealth:
    """Return the health of the mounts."""
    return PartHealth([_describe(mount) for mount in mounts])


def _describe(mount: Mount) -> MemberHealth:
    state = mount.state
    details = [f"{tools} tools"] if (tools := mount.count_tools()) else []
    details += [f"held: {withheld}"] if (withheld := mount.count_withheld()) else []
    details.append(state.code or state.status)
    return MemberHealth("Mount", state.status != "failed", mount.name, details)
