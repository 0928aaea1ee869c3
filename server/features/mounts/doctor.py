"""Check the mounts of the config file: each is opened as for a client that can nothing, and lists what it has."""

from functools import partial

from toolgate.server.cli.doctor.report import CheckError, CheckFinding, CheckNote, CheckSkippedError, DoctorPart
from toolgate.server.config.load import Config

MAX_NAME = 45  # characters of a served name that every client takes, with its own prefix


def list_checks(config: Config) -> DoctorPart:
    """Return the check of the mounts."""
    return DoctorPart([("mounts", partial(mounts, config), ())], after="rules")


async def mounts(config: Config) -> CheckFinding:
    """Open each mount."""
    from toolgate.server.features.mounts.commands.trial import describe_trial, try_mounts
    from toolgate.server.features.mounts.config.table import read_own_mounts  # start-up
    from toolgate.server.features.mounts.control import MountControl

    found = read_own_mounts(config)
    if not found.mounts and not found.faults:
        raise CheckSkippedError("none are configured")
    personal = [mount.name for mount in found.mounts if mount.needs_own_secrets and config.is_remote]
    trials = await try_mounts(config, [mount for mount in found.mounts if mount.name not in personal])
    faults = [f"{fault.name}: {fault.code}: {fault.text}" for fault in found.faults]
    faults += [f"{trial.name}: {trial.code}: {trial.error}" for trial in trials if trial.code]
    if faults:
        raise CheckError("; ".join(faults), "the other mounts are served; docs/gateway.md explains each code")
    statuses = MountControl(config.state).read_statuses()
    differing = sorted({name for status in statuses for name in status.differing})
    if differing:
        remedy = "give all servers of the state the same [mounts]: a person may reach any of them"
        raise CheckError(f"mounts differ between the servers on this state: {', '.join(differing)}", remedy)
    unpinned = [mount.name for mount in found.mounts if is_unpinned(mount.command, mount.args)]
    told = "; ".join(
        (
            *(f"{trial.name}: {describe_trial(trial)}" for trial in trials),
            *(f"{name}: not tried, as it wants a person's own secrets" for name in personal),
        )
    )
    if unpinned:
        remedy = "name a version, such as package@1.2.3: what runs is then what you have looked at"
        return CheckNote(f"{told}; {', '.join(unpinned)} may run another version at each start", remedy)
    return told


def is_unpinned(command: str, args: tuple[str, ...]) -> bool:
    """Return whether a package is run whose version is not named."""
    program = command.rpartition("/")[2]
    if program not in ("npx", "uvx", "bunx", "pnpx"):
        return False
    packages = [word for word in args if not word.startswith("-")]
    if not packages:
        return True
    name = packages[0].removeprefix("@")
    return "@" not in name and "==" not in name
