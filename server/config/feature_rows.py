"""List the features: what plugs into the core.

Beside this list the core knows what they have in the state (tables, flags, files): it opens whatever is switched on.

The options that a row names are read at each start, and the rest of it when the feature is on.
"""

import msgspec

ROOM = "toolgate.server.features"


class FeatureRow(msgspec.Struct, frozen=True):
    """One feature. All but `switches` and `table` are `module:NAME` below `ROOM`, or "".

    switches: keys of options; the feature is on if one has a value that is not 0 or false
    table: the table of the config file that it reads, `config.<table>`; the feature is on if the file has it, and where
        HTTP is served, since the table may come later. Without switches and a table it is always on
    is_http_only: whether it is on only where HTTP is served
    feature: its class; without one it is no part of a server
    options: its options by their group in the help; this module is imported at each start
    notes: what it says at the end of the help of options of the core, by their names
    commands: a `FeatureCommands`; this module is imported where a command is looked up
    check: a function that raises UsageError for options that do not fit the feature
    state: its `StatePart`
    doctor: a function that returns a `DoctorPart`
    demo: an async function that shows it to a `Tour` of `toolgate demo`, in a chapter of its own
    isolation: a `PluginIsolation`, imported for the first plugin that needs a process of its own
    """

    switches: tuple[str, ...]
    table: str = ""
    feature: str = ""
    options: str = ""
    notes: str = ""
    commands: str = ""
    check: str = ""
    state: str = ""
    doctor: str = ""
    demo: str = ""
    isolation: str = ""
    is_http_only: bool = False


FEATURES = (
    FeatureRow(
        switches=(),
        feature="clients.feature:ClientsFeature",
        commands="clients.commands.table:COMMANDS",
        is_http_only=True,
    ),
    FeatureRow(
        switches=(),
        commands="remote_checks.commands:COMMANDS",
    ),
    FeatureRow(
        switches=(),
        feature="telemetry.feature:TelemetryFeature",
        options="telemetry.options:OPTIONS",
        commands="telemetry.commands.table:COMMANDS",
        check="telemetry.options:check_options",
        state="telemetry.state_part:TelemetryState",
        doctor="telemetry.doctor:list_checks",
    ),
    FeatureRow(
        switches=(),
        feature="events.feature:EventsFeature",
        options="events.options:OPTIONS",
        commands="events.commands.table:COMMANDS",
        state="events.state_part:EventsState",
        doctor="events.doctor:list_checks",
    ),
    FeatureRow(
        switches=("database", "secret"),
        feature="postgres.feature:PostgresFeature",
        options="postgres.options:OPTIONS",
        doctor="postgres.doctor:list_checks",
    ),
    FeatureRow(
        switches=("redis",),
        feature="replicas.feature:ReplicasFeature",
        options="replicas.options:OPTIONS",
        check="replicas.options:check_options",
        doctor="replicas.doctor:list_checks",
        is_http_only=True,
    ),
    FeatureRow(
        switches=("node",),
        feature="nodes.feature:NodesFeature",
        options="nodes.options:OPTIONS",
        notes="nodes.options:NOTES",
        commands="nodes.commands.table:COMMANDS",
        check="nodes.options:check_node_options",
        state="nodes.state_part:NodesState",
        doctor="nodes.doctor:list_checks",
    ),
    FeatureRow(
        switches=(),
        table="mounts",
        feature="mounts.feature:MountsFeature",
        options="mounts.config.options:OPTIONS",
        commands="mounts.commands.table:COMMANDS",
        check="mounts.config.options:check_options",
        state="mounts.state_part:MountsState",
        doctor="mounts.doctor:list_checks",
        demo="mounts.demo:show_mounts",
        isolation="mounts.plugins.loader:Isolation",
    ),
)
