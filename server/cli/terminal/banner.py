"""Tell the person who starts an HTTP server on a terminal where it is, who may sign in, and how to end it."""

import logging
import sys

from toolgate.server.auth.login.accounts import NO_ACCOUNT
from toolgate.server.base.principals.sign_in_methods import HEADER, PASSWORD, parse_method
from toolgate.server.base.text import escape_unprintable
from toolgate.server.base.version import VERSION
from toolgate.server.cli.terminal.style import BOLD, CYAN, DIM, TITLE, Style, choose_style, is_terminal
from toolgate.server.config.load import Config

LABEL = 20  # columns of the labels


class Banner:
    """The banner of one server. Until `show`, the log on the terminal leaves out what the banner says."""

    def __init__(self, config: Config) -> None:
        self._config = config
        self._is_shown = False

    def show(self, sandbox: str, public_url: str, pairing_link: str) -> None:
        """Print the banner. `pairing_link`: where the first account can be created, or ""."""
        self._is_shown = True
        style = choose_style(sys.stderr, self._config.environment)
        print(format_banner(self._config, sandbox, public_url, pairing_link, style), file=sys.stderr, flush=True)

    def close(self) -> None:
        """Say that the server has ended, on a line of its own: a terminal shows Ctrl-C as ^C at the start of one."""
        if self._is_shown:
            print("\ntoolgate has ended.", file=sys.stderr, flush=True)

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether the terminal shows this line of the log."""
        return self._is_shown or (record.levelno >= logging.WARNING and record.msg != NO_ACCOUNT)


def choose_banner(config: Config) -> Banner | None:
    """Return a banner if a person at a terminal started an HTTP server, and did not ask for logs."""
    is_wanted = config.is_remote and is_terminal(sys.stderr) and not config.verbose and config.log_format == "text"
    return Banner(config) if is_wanted else None


def format_banner(config: Config, sandbox: str, public_url: str, pairing_link: str, style: Style) -> str:
    """Return the banner's text."""
    rows = [("paste into a client", style.paint(CYAN, public_url + row.path)) for row in config.transports]
    rows.append(("open in a browser", style.paint(CYAN, f"{public_url}/")))
    if pairing_link:
        rows.append(("begin here", style.paint(CYAN, pairing_link)))
        rows.append(("", "this link creates the first account, within ten minutes"))
    rows += [
        ("who may sign in", _describe_people(config)),
        ("sandbox", sandbox),
        ("state", escape_unprintable(str(config.state))),
    ]
    title = style.paint(TITLE, "toolgate") + style.paint(DIM, f" {VERSION}")
    lines = [f"  {style.paint(BOLD, f'{label:{LABEL}}')}  {style.wrap(text, LABEL + 4)}" for label, text in rows]
    return "\n".join(["", f"  {title}", "", *lines, "", style.paint(DIM, "  Ctrl-C ends the server."), ""])


def _describe_people(config: Config) -> str:
    """Return who may sign in."""
    if config.auth == "none":
        return "nobody has to: anyone on this machine may call (--auth none)"
    if config.auth != "oauth":
        return f"people who sign in at {config.auth}"
    listed = ", ".join(map(escape_unprintable, config.allow_users)) or "nobody"
    ways = []
    for word in config.login or (PASSWORD.name,):
        method, value = parse_method(word)
        if method is PASSWORD:
            ways.append("people with an account (toolgate user add NAME)")
        else:
            where = f"the proxy, in {value}" if method is HEADER else value or method.title
            ways.append(f"through {where}: {listed}")
    return "; ".join(ways)
