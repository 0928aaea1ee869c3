"""Check the mounts of the config file: each is opened as for a client that can nothing, and lists what it has."""

import re
from collections.abc import Sequence
from functools import partial

from toolgate.server.base.principals.sign_in_methods import OIDC, parse_method
from toolgate.server.cli.doctor.report import CheckError, CheckFinding, CheckNote, CheckSkippedError, DoctorPart
from toolgate.server.config.load import Config

LIKE_NPX = ("bunx", "pnpx")
PACKAGE_PROGRAMS = ("npx", "uvx", *LIKE_NPX)
EXACT = re.compile(r"(?:.@|===?)v?[0-9]+(?:\.[0-9]+)+[^*\s]*$|[@#][0-9a-f]{40}$")  # a version, or a commit


def list_checks(config: Config) -> DoctorPart:
    """Return the check of the mounts."""
    return DoctorPart([("mounts", partial(mounts, config), ())], after="rules")


async def mounts(config: Config) -> CheckFinding:
    """Open each mount."""
    from toolgate.server.features.mounts.commands.stored_pins import count_held, fetch_pins
    from toolgate.server.features.mounts.commands.trial import describe_trial, try_mounts
    from toolgate.server.features.mounts.config.table import read_own_mounts  # start-up
    from toolgate.server.features.mounts.control import MountControl

    found = read_own_mounts(config)
    if not found.mounts and not found.faults:
        raise CheckSkippedError("none are configured")
    personal = [
        mount.name for mount in found.mounts if mount.is_personal or (mount.needs_own_secrets and config.is_remote)
    ]
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
    told = "; ".join(
        (
            *(f"{trial.name}: {describe_trial(trial)}" for trial in trials),
            *(f"{name}: not tried, as it wants a person's own secrets or sign-in" for name in personal),
        )
    )
    notes: list[tuple[str, str]] = []  # findings, and what to do
    held = count_held(await fetch_pins(config, found.mounts))
    if held:
        counts = ", ".join(f"{name} ({count})" for name, count in held.items())
        notes.append((f"held: {counts}", "toolgate mount review NAME shows what has changed"))
    exchanging = [mount.name for mount in found.mounts if mount.auth == "exchange"]
    if exchanging and not has_provider(config):
        told_of = f"{', '.join(exchanging)} can be called by nobody, as no identity provider signs people in here"
        notes.append((told_of, "serve HTTP with --login oidc=ISSUER"))
    unpinned = [mount.name for mount in found.mounts if is_unpinned(mount.command, mount.args)]
    if unpinned:
        remedy = "name a version, such as package@1.2.3: what is approved of a server does not pin its code"
        notes.append((f"no version is named by the command of {', '.join(unpinned)}", remedy))
    if notes:
        return CheckNote("; ".join([told, *(note for note, _ in notes)]), "; ".join(remedy for _, remedy in notes))
    return told


def has_provider(config: Config) -> bool:
    """Return whether people sign in here with an OpenID Connect provider, whose word can be exchanged."""
    is_own = config.is_remote and config.auth == "oauth"
    return is_own and any(parse_method(way)[0] is OIDC for way in config.login)


def is_unpinned(command: str, args: Sequence[str]) -> bool:
    """Return whether the words run a package whose version they do not name."""
    from toolgate.server.features.mounts.install.package_command import read_package_command  # start-up

    program = command.rpartition("/")[2]
    package = read_package_command("npx" if program in LIKE_NPX else command, args)
    if package is not None:
        return not all(EXACT.search(each) for each in package.packages)
    return program in PACKAGE_PROGRAMS and not any(EXACT.search(word) for word in args)
