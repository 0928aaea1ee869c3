"""List what is read of mounts at each scrape."""

from collections.abc import Callable, Sequence

from toolgate.server.base.reports.metric_rows import MetricRow, Values, counter, gauge
from toolgate.server.features.mounts.mount.mount import Mount


def mount_rows(list_mounts: Callable[[], Sequence[Mount]]) -> list[MetricRow]:
    """Return the rows of the mounts that `list_mounts()` returns at a scrape."""
    return [
        gauge(
            "toolgate_mount_failed",
            "Whether the last that is known of a mounted server is a failure.",
            lambda: [((mount.name,), int(mount.state.status == "failed")) for mount in list_mounts()],
            "mount",
        ),
        gauge(
            "toolgate_mount_sessions",
            "Open sessions with mounted servers.",
            lambda: [((mount.name,), mount.running) for mount in list_mounts()],
            "mount",
        ),
        gauge(
            "toolgate_mount_held",
            "Items that a mounted server lists and that are not served, since they are not approved.",
            lambda: [((mount.name,), mount.count_withheld()) for mount in list_mounts()],
            "mount",
        ),
        counter(
            "toolgate_mount_failures",
            "Mounted servers that could not be opened, or whose session broke.",
            lambda: _count_failures(list_mounts()),
            "mount",
            "code",
        ),
    ]


def _count_failures(mounts: Sequence[Mount]) -> Values:
    for mount in mounts:
        for code, count in mount.standing.failures.items():
            yield (mount.name, code), count
