"""Build parts of the app that need several lines: search, rules, rate limits, cleaner, pages and folders."""

import hashlib
import logging
import os
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from toolgate.server.base.errors import UsageError
from toolgate.server.base.limits.rate_limit import CallRateLimiter
from toolgate.server.base.principals.principal import LOCAL_NAME
from toolgate.server.base.principals.sign_in_methods import OIDC, PASSWORD, parse_method
from toolgate.server.base.text import describe_os_error
from toolgate.server.base.watch import FileChanges
from toolgate.server.calls.policy.call_policy import CallPolicy, own_name_only
from toolgate.server.calls.policy.rule_check import ACCOUNT, PRINCIPAL, Callers, RuleNames
from toolgate.server.calls.policy.rules import Rules, parse_rules
from toolgate.server.config.load import Config, check_utf8
from toolgate.server.state import lock
from toolgate.server.state.store import Store
from toolgate.server.workspaces.local_workspaces import LocalWorkspaces
from toolgate.server.workspaces.sandboxing import Sandboxing
from toolgate.tools.api.outbound.fetch import Web
from toolgate.tools.api.registry import Registry
from toolgate.tools.builtin.skills import skills
from toolgate.tools.reading.browser.find_chromium import find_chromium
from toolgate.tools.reading.pages.local_page_reader import LocalPageReader
from toolgate.tools.reading.pages.page_reader import PageReader
from toolgate.tools.reading.search.lazy_search import LazySearch
from toolgate.tools.workspace import limits
from toolgate.tools.workspace.output.run_record import TaskEnd

if TYPE_CHECKING:
    from toolgate.server.base.bus.bus import Bus, Counters
    from toolgate.server.base.reports.client_settings import ClientSettings
    from toolgate.server.workspaces.retention import WorkspaceCleaner
    from toolgate.tools.api.plugins.reload import PluginReloader
    from toolgate.tools.reading.search.search import Search


log = logging.getLogger("toolgate")


def state_folder(config: Config) -> Path:
    """Create the state folder if it is missing, readable by its owner only, and return it."""
    state: Path = config.state
    if state.exists() and not state.is_dir():
        raise UsageError(f"--state: {state} is not a folder")
    try:
        state.parent.mkdir(parents=True, exist_ok=True)
        for folder in (state, state / "keys"):
            folder.mkdir(mode=0o700, exist_ok=True)
        if not os.access(state, os.W_OK | os.X_OK):
            raise UsageError(f"--state: {state} is not writable")
    except OSError as error:
        raise UsageError(f"--state: can't make {describe_os_error(error)}") from None
    return state


def lock_state(state: Path) -> int:
    """Return a descriptor that keeps other processes from replacing the state until it is closed."""
    try:
        return lock.acquire_shared(state)
    except OSError as error:
        raise UsageError(f"--state: {describe_os_error(error)}") from None


def build_search(config: Config, web: Web, reader: PageReader) -> LazySearch:
    """Return the search. It is loaded now if an option or key may be wrong, or metrics name its engines."""
    search = LazySearch(partial(_create_search, config, web, reader))
    has_key = any(name.startswith("TOOLGATE_") and name.endswith("_API_KEY") for name in config.environment)
    if config.is_remote or config.engines or config.searxng or config.search_keys or has_key:
        search.load()
    return search


def _create_search(config: Config, web: Web, reader: PageReader) -> "Search":
    from toolgate.tools.reading.search import api_keys, engines, search  # start-up and memory

    try:
        keys = api_keys.read_api_keys(config.search_keys, config.environment)
    except ValueError as error:
        raise UsageError(f"--search-keys: {error}") from None
    try:
        chosen = engines.choose_engines(config.engines, config.searxng, keys)
    except ValueError as error:
        raise UsageError(f"--engines: {error}") from None
    contact = config.search_contact
    create_reader, deadline = reader.create_result_reader, config.search_deadline
    return search.Search(web, create_reader, chosen, deadline=deadline, contact=contact)


def call_limits(config: Config) -> Mapping[str, int] | None:
    """Return the limits on calls a minute. Without sign-in all callers are one: only limits set by option apply."""
    said = [word for word in config.limit if word.startswith(limits.CALLS)]
    if config.is_remote and config.auth != "none":
        return limits.parse(said).calls
    return limits.parse(said, limits.UNLIMITED).calls if said else None


def build_rules(config: Config) -> Rules:
    def known_as(subject: str) -> str:
        from toolgate.server.auth.tokens.access_tokens import OWN_ISSUER
        from toolgate.server.base.principals.principal import Principal  # start-up: rules about people are rare

        return Principal(config.auth if "://" in config.auth else OWN_ISSUER, subject, "").name

    return Rules(*(parse_rules(words, known_as) for words in (config.deny, config.allow, config.approve)))


def find_rule_names(
    config: Config, callers: Callers, plugins: "PluginReloader", mounts: Collection[str], registry: Registry
) -> RuleNames:
    """Return what rules can name now."""
    from toolgate.server.base.principals.scopes import SERVED  # start-up: few servers have rules

    used = {part.scope for part in registry.parts}
    has_hidden = bool(config.classic.hidden_tools or config.tools)
    return RuleNames(
        registry.tools,
        sorted(set(plugins.names)),
        None if config.is_remote and "://" in config.auth else (*SERVED, *sorted(used.difference(SERVED))),
        callers,
        is_complete=plugins.is_complete and not has_hidden,
        can_grow=bool(config.plugins or has_hidden),
        mounts=mounts,
    )


async def list_callers(config: Config, store: Store, rules: Rules) -> Callers:
    """Return the forms that names of callers have here. Accounts are looked up only if a rule names one. Raises
    StateError."""
    if not config.is_remote or config.auth == "none":
        return {LOCAL_NAME: None}
    callers: dict[str, Collection[str] | None] = {PRINCIPAL: None}
    if config.auth != "oauth":
        return callers
    ways = [parse_method(word)[0] for word in config.login] or [PASSWORD]
    callers |= {f"{method.prefix}:…": None for method in (*ways, *([OIDC] if config.enterprise_issuers else []))}
    if ACCOUNT in callers and rules.names_accounts:
        from toolgate.server.state.rows import people as people_rows  # start-up, as above

        rows = [] if store.is_empty() else await store.read(people_rows.list_accounts)
        callers[ACCOUNT] = [row.name for row in rows]
    return callers


def plugin_folders(config: Config) -> Sequence[Path]:
    """Return the plugin folders and files. Raises UsageError for one that is missing: a slip would serve without its
    plugins."""
    for folder in config.plugins:
        if not folder.exists():
            kind = "file" if folder.suffix == ".py" else "folder"
            raise UsageError(f"--plugins: there is no {kind} {folder}")
        if not folder.is_dir() and folder.suffix != ".py":
            raise UsageError(f"--plugins: {folder} is neither a folder nor a Python file: its name must end in .py")
    folders: Sequence[Path] = config.plugins
    return folders


def find_clients() -> "Callable[[str], ClientSettings]":
    """Return what lists the clients that can use the server at a URL: none."""
    from toolgate.server.base.reports.client_settings import ClientSettings  # start-up: stdio has no page

    return lambda public_url: ClientSettings()


def find_counters() -> "Callable[[], Counters]":
    """Return what makes the counters of one limiter."""
    from toolgate.server.base.bus.memory_keys import MAX_COUNTERS, MemoryKeys  # start-up: stdio does without

    return partial(MemoryKeys, most=MAX_COUNTERS)


def build_policy(
    config: Config,
    rules: Rules,
    store: Store,
    bus: "Bus | None",
    limiter: CallRateLimiter | None,
) -> CallPolicy:
    """Return the policy on calls. It looks up the names of people only if a rule has such a name."""
    find_names = own_name_only
    if rules.names_people:
        from toolgate.server.auth.principal_names import PrincipalNames  # start-up: rules about people are rare

        find_names = PrincipalNames(store).find_names
    remembered = nonces = None
    if bus is not None:
        from toolgate.server.calls.policy.nonces import Nonces  # start-up: stdio does without

        nonces = Nonces(bus.keys)
    if config.approve:
        from toolgate.server.auth.principal_names import PrincipalNames
        from toolgate.server.base.bus.memory_keys import MemoryKeys  # start-up: approvals are rare
        from toolgate.server.calls.policy.nonces import Nonces
        from toolgate.server.calls.policy.remembered_approvals import RememberedApprovals

        keys = MemoryKeys() if bus is None else bus.keys
        find_label = PrincipalNames(store).find_label
        remembered = RememberedApprovals(store, keys=keys, find_label=find_label)
        nonces = nonces or Nonces(keys)
    return CallPolicy(rules, find_names, limiter, nonces, remembered)


def build_cleaner(
    config: Config,
    state: Path,
    root: Path | None,
    list_gone: Callable[[], Awaitable[Collection[str] | None]],
    end: Callable[[str], Awaitable[None]],
) -> "WorkspaceCleaner | None":
    """Return the cleaner if each principal has its own workspace. The folder of --workspace stays as it is."""
    if not config.is_remote or root is not None:
        return None
    from toolgate.server.workspaces import retention  # start-up: stdio does without

    idle = retention.RetentionPolicy(config.idle_workspaces, config.idle_after)
    gone = retention.RetentionPolicy(config.gone_workspaces, config.gone_after)
    return retention.WorkspaceCleaner(state, idle=idle, gone=gone, list_gone=list_gone, end=end)


def build_workspaces(
    config: Config,
    state: Path,
    root: Path | None,
    file_changes: FileChanges,
    on_task_end: Callable[[str, TaskEnd], None],
) -> LocalWorkspaces:
    """Return the workspaces on this machine, with their folders in the state. Raises UsageError where the sandbox asks
    for more than it has."""
    try:
        for folder in (state / "spool", state / "workspaces"):
            folder.mkdir(mode=0o700, exist_ok=True)
    except OSError as error:
        raise UsageError(f"--state: can't make {describe_os_error(error)}") from None
    confinement = Sandboxing(config, state, public=config.is_public)
    return LocalWorkspaces(
        state, root, config.command_environment, confinement, file_changes, on_task_end, config.login_shell
    )


def build_web(config: Config, option: str = "--allow-private") -> Web:
    """Return what fetches pages. `option`: what a refusal says would allow the address."""
    try:
        web = Web(config.allow_private, config.refuse_networks)
    except ValueError as error:
        raise UsageError(f"--allow-private or --refuse-networks: {error}") from None
    web.allowed = msgspec.structs.replace(web.allowed, option=option)
    return web


def build_page_reader(config: Config, web: Web) -> PageReader:
    """Return the reader of pages, with a browser and workers that this process starts."""
    try:
        chromium = find_chromium(config.browser, config.environment.get("PATH"))
    except ValueError as error:
        raise UsageError(f"--browser: {error}") from None
    return LocalPageReader(web, chromium)


def workspace_root(config: Config) -> Path | None:
    """Return the folder all tools work in, or None if every principal gets its own."""
    root = config.find_shared_workspace()
    if root is None:
        return None
    if not root.is_dir():
        raise UsageError(
            f"--workspace: {root} is not a folder" if root.exists() else f"--workspace: there is no folder {root}"
        )
    check_utf8("--workspace", str(root.resolve()))
    return root.resolve()


def hash_options(config: Config, where: str) -> str:
    """Return a digest of the options that change what a call does: only an equal server may rerun a call. `where` is
    as in `AppHost`."""
    kind = "http" if config.is_remote else "stdio"
    said = [kind, where or "per principal", [str(folder) for folder in config.plugins], list(config.allow_private)]
    said += [list(config.refuse_networks)] if config.refuse_networks else []
    return hashlib.sha256(msgspec.json.encode(said)).hexdigest()[:16]


def skill_folders(config: Config) -> list[Path]:
    """Return the folders of skills: the first with a name wins. Over HTTP an agent could write those in a workspace, so
    they count over stdio only. Raises UsageError for a folder of --skills that is missing."""
    for folder in config.skills:
        if not folder.exists():
            raise UsageError(f"--skills: there is no folder {folder}")
        if not folder.is_dir():
            raise UsageError(f"--skills: {folder} is not a folder")
    home = Path(config.environment.get("HOME") or "/") / ".claude/skills"
    root = None if config.is_remote else config.find_shared_workspace()
    if root is None:
        return [*config.skills, home, skills.BUILT_IN]
    return [*config.skills, root / ".toolgate/skills", root / ".claude/skills", home, skills.BUILT_IN]
