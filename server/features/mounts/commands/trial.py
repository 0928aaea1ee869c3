"""Open a mount once, list what it has, and end it: for `toolgate mount test` and `doctor`."""

import asyncio
import time
from collections.abc import Collection, Sequence

import msgspec

from toolgate.server.app.features import build_host
from toolgate.server.app.host import AppHost
from toolgate.server.base.principals.principal import LOCAL_NAME
from toolgate.server.config.load import Config
from toolgate.server.features.mounts.config.mount_config import MountConfig
from toolgate.server.features.mounts.kept_secrets.resolver import ResolvedMount, list_hidden
from toolgate.server.features.mounts.lists.list_store import (
    MountLists,
    drop_long_names,
    drop_secret_names,
    fetch_lists,
    list_repeated,
)
from toolgate.server.features.mounts.mount.pool import SessionKey
from toolgate.server.features.mounts.mount.profile import NOTHING, ClientProfile
from toolgate.server.features.mounts.openers import create_client_tokens, create_opener, create_resolver
from toolgate.server.features.mounts.upstream.errors import MountError, UpstreamRefusedError, hide_secrets

PATIENCE = 60.0  # seconds for one mount

UNTRIED = {  # the code and the reason, by `auth`
    "oauth": ("SIGN_IN_REQUIRED", "each person signs in there, on the first page of a server over HTTP"),
    "exchange": ("IDENTITY_MISSING", "people have tokens there who sign in over HTTP with --login oidc"),
}


class MountTrial(msgspec.Struct, frozen=True):
    """How a mount did. `code` and `error` are "" where it works. `seconds`: until its lists were there; `hidden`: the
    secrets that they repeat."""

    name: str
    seconds: float
    lists: MountLists = MountLists()
    code: str = ""
    error: str = ""
    hidden: Collection[str] = ()


async def try_mounts(
    config: Config, mounts: Sequence[MountConfig], profile: ClientProfile = NOTHING
) -> list[MountTrial]:
    """Return how each mount did, as a client of this profile finds it. Commands run as a server with these options
    would run them. Raises StateError."""
    host, _ = build_host(config, upgrades=False)
    try:
        return await asyncio.gather(*(_try_mount(host, mount, profile) for mount in mounts))
    finally:
        if host.workspaces.is_made:
            await host.workspaces().close()


async def _try_mount(host: AppHost, mount: MountConfig, profile: ClientProfile) -> MountTrial:
    if mount.auth in UNTRIED:
        code, told = UNTRIED[mount.auth]
        return MountTrial(mount.name, 0.0, code=code, error=f"{told}: nothing is tried from here")
    tokens = create_client_tokens(mount) if mount.auth else None
    opener, began = create_opener(host, mount, tokens), time.monotonic()
    principal = "" if host.config.is_remote else LOCAL_NAME
    resolver = create_resolver(host, mount)
    hidden: Collection[str] = ()
    try:
        async with asyncio.timeout(PATIENCE):
            resolved = resolver.fill_in(await resolver.find(principal)) if resolver else ResolvedMount(mount)
            hidden = list_hidden(resolved)
            session = await opener.open(SessionKey(principal, profile), resolved, lambda _method, _params: None)
            try:
                listed = drop_long_names(await fetch_lists(session), mount.name)
                secrets = [*resolved.values, *opener.list_tokens(principal)]
                lists = drop_secret_names(listed, mount.name, secrets)
            finally:
                await session.close()
    except MountError as error:
        said = hide_secrets(error.sentence, hidden)
        return MountTrial(mount.name, time.monotonic() - began, code=error.code, error=said)
    except UpstreamRefusedError as error:
        said = hide_secrets(str(error), hidden)
        return MountTrial(mount.name, time.monotonic() - began, code="LIST_FAILED", error=said)
    except TimeoutError:
        said = f"no lists within {PATIENCE:g} s"
        return MountTrial(mount.name, time.monotonic() - began, code="INITIALIZE_TIMEOUT", error=said)
    finally:
        await opener.close()
    repeated = list_repeated(lists, {*hidden, *secrets}.difference(mount.args))
    return MountTrial(mount.name, time.monotonic() - began, lists, hidden=repeated)


def describe_trial(trial: MountTrial) -> str:
    """Return what a mount has, in words: "12 tools, 2 prompts (2025-11-25, 0.4 s)"."""
    lists = trial.lists
    counts = (
        (len(lists.tools), "tool"),
        (len(lists.prompts), "prompt"),
        (len(lists.resources) + len(lists.templates), "resource"),
        (len(lists.skills), "skill"),
    )
    told = [f"{count} {noun}{'' if count == 1 else 's'}" for count, noun in counts if count]
    return f"{', '.join(told) or 'nothing'} ({lists.revision}, {trial.seconds:.1f} s)"
