"""Check what the tools need: the shell, the browser, plugins, skills and the rules about them."""

import asyncio
import logging
import shutil
import subprocess
from collections.abc import AsyncGenerator, Generator, Mapping
from contextlib import aclosing, asynccontextmanager, closing, contextmanager
from functools import partial
from importlib.util import find_spec
from subprocess import DEVNULL, PIPE
from typing import TYPE_CHECKING

from toolgate.server.base.errors import UsageError
from toolgate.server.cli.doctor.report import CheckError, CheckFinding, CheckNote, CheckSkippedError
from toolgate.server.cli.terminal.output import format_count
from toolgate.server.config.load import Config
from toolgate.tools.api.installation import name_extra

if TYPE_CHECKING:
    from toolgate.tools.api.plugins.reload import PluginReloader

RUN_WITHIN = 10.0  # seconds; normally milliseconds
LOAD_TIMEOUT = 30.0  # seconds for all plugins


async def plugins(config: Config) -> CheckFinding:
    if not config.plugins:
        raise CheckSkippedError("none are configured")
    from toolgate.server.app.build import plugin_folders  # start-up
    from toolgate.tools.api.registry import Registry

    try:
        plugin_folders(config)
    except UsageError as error:
        raise CheckError(str(error), "correct --plugins: the server refuses to start with it") from None
    with _capture_warnings("toolgate.plugins") as told:
        async with _load_plugins(config) as plugins:
            parts = list(plugins.registry(Registry()).parts)
    if told:
        raise CheckError("; ".join(told), "fix that file; the server starts without it")
    if not parts:
        return CheckNote("no plugin is there", "copy one there, or correct --plugins")
    return format_count(len(parts), "part")


async def skills(config: Config) -> CheckFinding:
    """Check the files of all skills, without the cache."""
    from toolgate.server.app import build as parts  # start-up
    from toolgate.tools.builtin.skills.skills import Skills

    try:
        folders = parts.skill_folders(config)
    except UsageError as error:
        raise CheckError(str(error), "correct --skills: the server refuses to start with it") from None
    with _capture_warnings("toolgate.tools.builtin.skills.skills") as told:
        found = await asyncio.to_thread(Skills(folders).catalogue)
    counted = format_count(len(found), "skill")
    if told:
        return CheckNote(f"{counted}; {'; '.join(told)}", "fix that SKILL.md; the other skills are offered")
    return counted


async def rules(config: Config) -> CheckFinding:
    """Check for rules that match no call: a start refuses them, or they wait for a plugin."""
    configured = [*config.deny, *config.approve, *config.allow]
    if not configured:
        raise CheckSkippedError("none are configured")
    from toolgate.server.app import build as parts
    from toolgate.server.app import builtin_tools  # start-up
    from toolgate.server.app.features import build_host
    from toolgate.server.base.errors import StateError
    from toolgate.server.calls.policy.rule_check import RuleCheck
    from toolgate.tools.api.registry import Registry
    from toolgate.tools.builtin.skills.skills import Skills

    rules = parts.build_rules(config)
    try:
        host, _ = build_host(config, upgrades=False)
        async with aclosing(host.store()) as store:
            callers = await parts.list_callers(config, store, rules)
    except StateError as error:
        raise CheckSkippedError(str(error)) from None
    built_in = builtin_tools.builtin_parts(Skills([]))
    with _capture_warnings("toolgate.plugins"):
        async with _load_plugins(config) as plugins:
            registry = plugins.registry(Registry(built_in))
            check = RuleCheck(rules, partial(parts.find_rule_names, config, callers, plugins, host.mount_names))
            faults = check.find_faults(registry)
    told = "; ".join(f"{rule}: {fault}" for rule, fault, _ in faults)
    if any(is_final for _, _, is_final in faults):
        raise CheckError(told, "correct the rule: the server refuses to start with it")
    if faults:
        return CheckNote(told, "correct the rule, unless a plugin will come that it matches")
    return f"all {len(configured)} match" if len(configured) > 1 else "it matches"


@asynccontextmanager
async def _load_plugins(config: Config) -> "AsyncGenerator[PluginReloader]":
    from toolgate.tools.api.plugins.loader import PluginLoader  # start-up
    from toolgate.tools.api.plugins.reload import PluginReloader

    with (
        closing(PluginLoader()) as loader,
        closing(PluginReloader(config.plugins, loader.load, on_change=lambda: None)) as plugins,
    ):
        if config.plugins:
            await plugins.reload(LOAD_TIMEOUT)
        yield plugins


@contextmanager
def _capture_warnings(name: str) -> Generator[list[str]]:
    """Collect this logger's warnings instead of logging them."""
    handler, logger = _WarningHandler(), logging.getLogger(name)
    logger.addHandler(handler)
    propagate, logger.propagate = logger.propagate, False
    try:
        yield handler.lines
    finally:
        logger.removeHandler(handler)
        logger.propagate = propagate


class _WarningHandler(logging.Handler):
    """Keep each warning's first line and exception."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        line = record.getMessage().splitlines()[0]
        raised = str(record.exc_info[1]) if record.exc_info and record.exc_info[1] else ""
        self.lines.append(f"{line} ({raised})" if raised and raised not in line else line)


async def browser(config: Config) -> CheckFinding:
    """Check that the browser starts: only that shows whether its sandbox works here."""
    from toolgate.tools.api.outbound.address_policy import AddressPolicy
    from toolgate.tools.reading.browser.browser import Browser  # start-up
    from toolgate.tools.reading.browser.chromium import BrowserStartError
    from toolgate.tools.reading.browser.find_chromium import find_chromium

    try:
        found = find_chromium(config.browser, config.environment.get("PATH"))
    except ValueError as error:
        raise CheckError(str(error), "correct --browser") from None
    if found is None:
        without = "optional: ReadDocs works without a browser, but runs no scripts of pages"
        package = "" if find_spec("playwright") else f"; then {name_extra('browser')}"
        raise CheckSkippedError(f"{without}; to add one: apt-get install chromium-headless-shell{package}")
    if find_spec("playwright") is None:
        return CheckNote(
            f"{found} is there, but not the package that drives it: ReadDocs runs no scripts of pages",
            f"{name_extra('browser')}; or --browser none, which silences this",
        )
    browser = Browser(found, AddressPolicy())
    try:
        sandboxed = await browser.try_start()
    except BrowserStartError as failure:
        raise CheckError(
            f"{found}: {failure}", "optional: ReadDocs works without a browser; --browser none silences this"
        ) from None
    finally:
        await browser.close()
    return f"{found}, its sandbox {'on' if sandboxed else 'OFF: this machine does not allow one'}"


async def shell(config: Config) -> str:
    bash = shutil.which("bash", path=config.environment.get("PATH"))
    if bash is None:
        raise CheckError("there is no bash in PATH", "install bash: Bash and BackgroundBash need it")
    said = await asyncio.to_thread(_run_echo, bash, config.command_environment)
    if said != b"ready\n":
        raise CheckError(
            f"{bash} can't run a command", "put a working bash first in PATH: Bash and BackgroundBash need it"
        )
    return bash


def _run_echo(bash: str, environment: Mapping[str, str]) -> bytes:
    """Return the output of a command, or "" if it can't run."""
    try:
        command = [bash, "-c", "echo ready"]
        return subprocess.run(
            command, stdin=DEVNULL, stdout=PIPE, stderr=DEVNULL, env=environment, timeout=RUN_WITHIN, check=False
        ).stdout
    except (OSError, subprocess.SubprocessError):
        return b""
