"""Check whether this machine can serve or, with a URL, whether a hosted client can reach it (`toolgate doctor`).

Checks change nothing: they remove what they create.
"""

import sys
from collections.abc import Awaitable, Callable
from functools import partial

from toolgate.server import VERSION, progress
from toolgate.server.cli.doctor import machine, serving, state, tools
from toolgate.server.cli.doctor.report import CheckFinding, CheckRow, run_checks
from toolgate.server.cli.style import choose_style
from toolgate.server.config.load import Config


async def check(config: Config, *, url: str | None, json: bool) -> int:
    """Check this machine, or `url` as a hosted client sees it; 0 if no check fails."""
    rows: list[CheckRow]
    if url is None:
        rows = [(name, partial(look, config), ()) for name, look in MACHINE_CHECKS.items()]
    else:
        from toolgate.server.cli.doctor.remote import remote_checks  # start-up
        from toolgate.server.cli.sign_in.credentials import find_token

        rows = remote_checks(url, (await find_token(config, url)).text)
    about = {"toolgate": VERSION, "url": url} if json else None
    style = choose_style(sys.stdout, config.environment)
    return await run_checks(rows, progress.terminal_progress(config.environment), about, style)


MACHINE_CHECKS: dict[str, Callable[[Config], Awaitable[CheckFinding]]] = {
    "python": machine.python,
    "options": serving.options,
    "sandbox": serving.sandbox,
    "limits": serving.limits,
    "proxies": serving.proxies,
    "client documents": serving.documents,
    "state folder": state.folder,
    "state database": state.database,
    "signing key": state.signing_key,
    "audit": state.audit,
    "clock": machine.clock,
    "disk space": machine.disk,
    "memory": machine.memory,
    "open files": machine.open_files,
    "shell": tools.shell,
    "browser": tools.browser,
    "plugins": tools.plugins,
    "skills": tools.skills,
    "rules": tools.rules,
    "port": serving.port,
}
