"""Build parts of the app that need several lines: search, rules, rate limits, cleaner, pages and folders."""

import contextlib
import hashlib
import logging
import os
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from toolgate.server.base.principal import LOCAL_NAME
from toolgate.server.base.text import describe_os_error
from toolgate.server.base.watch import FileChanges
from toolgate.server.config.load import Config, check_utf8
from toolgate.server.config.secret_file import read_secret
from toolgate.server.policy.call_policy import CallPolicy, RateLimiter, own_name_only
from toolgate.server.policy.rate_limit import CallRateLimiter
from toolgate.server.policy.rule_check import ACCOUNT, PRINCIPAL, Callers, RuleNames
from toolgate.server.policy.rules import Rules, parse_rules
from toolgate.server.policy.sign_in_methods import OIDC, PASSWORD, parse_method
from toolgate.server.protocol.errors import UsageError
from toolgate.server.state import key_check, lock
from toolgate.server.state.event_rows import EventLimits
from toolgate.server.state.sqlite_store import SqliteStore
from toolgate.server.state.store import Store
from toolgate.server.state.stores import open_store
from toolgate.server.workspaces.local_workspaces import LocalWorkspaces
from toolgate.server.workspaces.sandboxing import Sandboxing
from toolgate.server.workspaces.workspaces import Workspaces
from toolgate.tools.api.registry import Registry
from toolgate.tools.browser.find_chromium import find_chromium
from toolgate.tools.builtin.skills import skills
from toolgate.tools.pages.local_page_reader import LocalPageReader
from toolgate.tools.pages.page_reader import PageReader
from toolgate.tools.search.lazy_search import LazySearch
from toolgate.tools.web.fetch import Web
from toolgate.tools.workspace import limits
from toolgate.tools.workspace.run_record import TaskEnd

if TYPE_CHECKING:
    from toolgate.server.base.bus.bus import Bus
    from toolgate.server.events.subscriptions import SubscriptionLimits
    from toolgate.server.node.gateway.remote_workspaces import RemoteWorkspaces
    from toolgate.server.plugins.reload import PluginReloader
    from toolgate.server.state.postgres_monitor import PostgresMonitor
    from toolgate.server.state.replicas import ReplicaProcesses
    from toolgate.server.webhooks.sender import WebhookSender
    from toolgate.server.workspaces.retention import WorkspaceCleaner
    from toolgate.tools.search.search import Search

NODE_TIMEOUT = 5.0  # seconds for a node to answer at the start
NODE_OPTIONS = (
    *("workspace", "idle_workspaces", "idle_after", "gone_workspaces", "gone_after"),
    *("sandbox", "sandbox_network", "sandbox_paths", "sandbox_uids", "browser"),
)

log = logging.getLogger("toolgate")


def state_folder(config: Config) -> Path:
    """Create the state folder if it is missing, readable by its owner only, and return it."""
    state: Path = config.state
    if state.exists() and not state.is_dir():
        raise UsageError(f"--state: {state} is not a folder")
    try:
        state.parent.mkdir(parents=True, exist_ok=True)
        of_commands = () if config.node else (state / "spool", state / "workspaces")
        for folder in (state, state / "keys", *of_commands):
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


async def find_deployment(config: Config) -> str:
    """Return the id of the servers that share --redis, or "" without it. Raises StateError."""
    if config.redis is None:
        return ""
    from toolgate.server.state import deployment  # start-up: only replicas have it

    async with contextlib.aclosing(open_store(config.state, config.database)) as store:
        return await deployment.find_deployment(store)


def build_replicas(config: Config, bus: "Bus | None") -> "ReplicaProcesses | None":
    """Return the replicas that share the state with --redis, else None."""
    if bus is None or config.redis is None:
        return None
    from toolgate.server.state import postgres  # start-up: only replicas have it
    from toolgate.server.state.replica_lock import ReplicaLock
    from toolgate.server.state.replicas import ReplicaProcesses

    return ReplicaProcesses(bus.replica, ReplicaLock(bus.replica.name, partial(postgres.connect, config.database)))


def build_database_monitor(store: Store) -> "PostgresMonitor | None":
    """Return what knows whether PostgreSQL answers, or None where the state is a file."""
    if isinstance(store, SqliteStore):
        return None
    from toolgate.server.state import postgres  # start-up: only --database has it
    from toolgate.server.state.postgres_monitor import PostgresMonitor
    from toolgate.server.state.postgres_store import PostgresStore

    assert isinstance(store, PostgresStore)
    return PostgresMonitor(partial(postgres.connect, store.url), store.count_transactions)


def build_search(config: Config, web: Web, reader: PageReader) -> LazySearch:
    """Return the search. It is loaded now if an option or key may be wrong, or metrics name its engines."""
    search = LazySearch(partial(_create_search, config, web, reader))
    has_key = any(name.startswith("TOOLGATE_") and name.endswith("_API_KEY") for name in config.environment)
    if config.is_remote or config.engines or config.searxng or config.search_keys or has_key:
        search.load()
    return search


def _create_search(config: Config, web: Web, reader: PageReader) -> "Search":
    from toolgate.tools.search import api_keys, engines, search  # start-up and memory

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
        from toolgate.server.base.principal import Principal  # start-up: rules about people are rare

        return Principal(config.auth if "://" in config.auth else OWN_ISSUER, subject, "").name

    return Rules(*(parse_rules(words, known_as) for words in (config.deny, config.allow, config.approve)))


def find_rule_names(config: Config, callers: Callers, plugins: "PluginReloader", registry: Registry) -> RuleNames:
    """Return what rules can name now."""
    from toolgate.server.auth.scopes import SERVED  # start-up: few servers have rules

    used = {part.scope for part in registry.parts}
    return RuleNames(
        registry.tools,
        sorted(set(plugins.names)),
        None if config.is_remote and "://" in config.auth else (*SERVED, *sorted(used.difference(SERVED))),
        callers,
        is_complete=plugins.is_complete and not config.classic.hidden_tools,
        can_grow=bool(config.plugins or config.classic.hidden_tools),
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
        from toolgate.server.state import people_rows  # start-up, as above

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


def build_policy(config: Config, rules: Rules, store: Store, bus: "Bus | None") -> CallPolicy:
    """Return the policy on calls. It looks up the names of people only if a rule has such a name."""
    find_names = own_name_only
    if rules.names_people:
        from toolgate.server.auth.principal_names import PrincipalNames  # start-up: rules about people are rare

        find_names = PrincipalNames(store).find_names
    remembered = nonces = None
    if bus is not None:
        from toolgate.server.policy.nonces import Nonces  # start-up: stdio does without

        nonces = Nonces(bus.keys)
    if config.approve:
        from toolgate.server.auth.principal_names import PrincipalNames
        from toolgate.server.base.bus.memory_keys import MemoryKeys  # start-up: approvals are rare
        from toolgate.server.policy.nonces import Nonces
        from toolgate.server.policy.remembered_approvals import RememberedApprovals

        in_sessions = None
        if bus is not None and config.redis is not None:
            from toolgate.server.policy.shared_approvals import SharedSessionApprovals  # start-up: replicas alone

            in_sessions = SharedSessionApprovals(bus.keys)
        find_label = PrincipalNames(store).find_label
        remembered = RememberedApprovals(store, in_sessions=in_sessions, find_label=find_label)
        nonces = nonces or Nonces(MemoryKeys())
    most = call_limits(config)
    limiter: RateLimiter | None = None
    if most is not None and any(most.values()):
        limiter = local = CallRateLimiter(most)
        if bus is not None and config.redis is not None:
            from toolgate.server.policy.shared_rate_limit import SharedRateLimiter  # start-up: only replicas have it

            limiter = SharedRateLimiter(most, local, bus)
    return CallPolicy(rules, find_names, limiter, nonces, remembered)


def build_cleaner(
    config: Config,
    state: Path,
    root: Path | None,
    list_gone: Callable[[], Awaitable[Collection[str] | None]],
    end: Callable[[str], Awaitable[None]],
) -> "WorkspaceCleaner | None":
    """Return the cleaner if each principal has its own workspace. The folder of --workspace stays as it is."""
    if not config.is_remote or root is not None or config.node:
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
    _list_gone: object = None,
    _store: object = None,
) -> LocalWorkspaces:
    """Return the workspaces on this machine. Raises UsageError where the sandbox asks for more than it has."""
    confinement = Sandboxing(config, state, public=config.is_public)
    return LocalWorkspaces(
        state, root, config.command_environment, confinement, file_changes, on_task_end, config.login_shell
    )


def check_node_options(config: Config) -> None:
    """Raise UsageError for options that are a node's, and for a node that is given twice."""
    for key in NODE_OPTIONS:
        if config.is_given(key):
            raise UsageError(f"--{key.replace('_', '-')} is the node's: give it to toolgate node, not beside --node")
    for word in config.limit:
        if not _is_of_calls(word):
            raise UsageError(f"--limit {word} is the node's: give it to toolgate node, not beside --node")
    if len(set(config.node)) < len(config.node):
        twice = next(address for address in config.node if config.node.count(address) > 1)
        raise UsageError(f"--node {twice} is given twice: give each node once")


def check_server_options(config: Config) -> None:
    """Raise UsageError for options of a node that are its servers'."""
    for word in filter(_is_of_calls, config.limit):
        raise UsageError(f"--limit {word} is the server's: give it to the server with --node, not to toolgate node")


def _is_of_calls(limit: str) -> bool:
    return limit.partition("=")[0].partition(":")[0] == limits.CALLS


def build_remote_workspaces(
    config: Config,
    _state: Path,
    _root: Path | None,
    file_changes: FileChanges,
    on_task_end: Callable[[str, TaskEnd], None],
    list_gone: Callable[[], Awaitable[Collection[str] | None]],
    store: Store,
) -> "RemoteWorkspaces":
    """Return the workspaces at the nodes of --node. Raises UsageError if none answers, for nodes that can't be used
    together, and for options of nodes."""
    from toolgate.server.node import connect, databases  # start-up: most servers have no node
    from toolgate.server.node.gateway import link, placement, remote_workspaces

    check_node_options(config)
    certificate = connect.read_certificate(config, "--node", *config.node)
    answers = link.greet_all(config.node, NODE_TIMEOUT, certificate)
    reasons = [f"{address} ({answer})" for address, answer in answers if isinstance(answer, Exception)]
    if len(reasons) == len(answers):
        where = " nor at ".join(reasons)
        raise UsageError(f"--node: no node answers at {where}: start one with toolgate node --listen {config.node[0]}")
    for reason in reasons:
        log.warning("no node answers at %s: it is used as soon as it does", reason)
    try:
        secret = read_secret(config)
        database = databases.make_database_id(store.folder) if secret is None else databases.derive_database_id(secret)
    except OSError as error:
        raise UsageError(f"--state: {describe_os_error(error)}: {key_check.OTHERS['database']}") from None
    needs_sandbox = config.is_public and not config.accept_unsandboxed
    links = [
        link.NodeLink(address, None if isinstance(answer, Exception) else answer, certificate, database)
        for address, answer in answers
    ]
    try:
        return remote_workspaces.RemoteWorkspaces(
            placement.Placement(store, links), file_changes, on_task_end, list_gone, needs_sandbox=needs_sandbox
        )
    except link.NodeUnreachableError as error:
        raise UsageError(f"--node: {error}") from None


def build_web(config: Config) -> Web:
    try:
        web = Web(config.allow_private, config.refuse_networks)
    except ValueError as error:
        raise UsageError(f"--allow-private or --refuse-networks: {error}") from None
    if config.listen:
        web.allowed = msgspec.structs.replace(web.allowed, option="the node's --allow-private")
    return web


def build_webhook_sender(config: Config) -> "WebhookSender":
    """Return what posts to callbacks, under the same limits as `build_web`, which has checked them."""
    from toolgate.server.webhooks.sender import WebhookSender  # start-up: stdio does without

    return WebhookSender(config.allow_private, config.refuse_networks)


def build_page_reader(config: Config, web: Web, workspaces: Workspaces) -> PageReader:
    """Return the reader of pages: at the nodes of --node, or with a browser and workers that this process starts."""
    if config.node:
        from toolgate.server.node.gateway.remote_workspaces import RemoteWorkspaces
        from toolgate.server.node.pages.remote_page_reader import (
            RemotePageReader,  # start-up: most servers have no node
        )

        assert isinstance(workspaces, RemoteWorkspaces)
        return RemotePageReader(workspaces.get_pages)
    try:
        chromium = find_chromium(config.browser, config.environment.get("PATH"))
    except ValueError as error:
        raise UsageError(f"--browser: {error}") from None
    return LocalPageReader(web, chromium)


def workspace_root(config: Config) -> Path | None:
    """Return the folder all tools work in, or None if every principal gets its own."""
    if config.workspace is None and config.is_remote:
        return None
    try:
        root: Path = config.workspace or Path.cwd()
    except OSError:
        raise UsageError("--workspace: the current directory is gone; name a folder") from None
    if not root.is_dir():
        raise UsageError(
            f"--workspace: {root} is not a folder" if root.exists() else f"--workspace: there is no folder {root}"
        )
    check_utf8("--workspace", str(root.resolve()))
    return root.resolve()


def event_limits(config: Config) -> EventLimits:
    return EventLimits(config.event_count, config.event_size, float(config.event_age))


def subscription_limits(config: Config) -> "SubscriptionLimits":
    from toolgate.server.events.subscriptions import SubscriptionLimits  # start-up: stdio does without

    return SubscriptionLimits(config.webhook_count, longest=float(config.webhook_age))


def hash_options(config: Config, root: Path | None) -> str:
    """Return a digest of the options that change what a call does: only an equal server may rerun a call."""
    kind = "http" if config.is_remote else "stdio"
    where = "at nodes" if config.node else "per principal" if root is None else str(root)
    said = [kind, where, [str(folder) for folder in config.plugins], list(config.allow_private)]
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
    if config.is_remote:
        return [*config.skills, home, skills.BUILT_IN]
    root: Path = config.workspace or Path.cwd()
    return [*config.skills, root / ".toolgate/skills", root / ".claude/skills", home, skills.BUILT_IN]
