"""Render the pages from the templates in pages/, with the headers that every page has."""

import hashlib
import time
from functools import cached_property, lru_cache, partial
from pathlib import Path
from typing import Any

from starlette.responses import Response

from toolgate.server.base.principals.scopes import name_scope
from toolgate.server.base.reports.page_part import PagePart
from toolgate.server.base.text import escape_invisible, format_size

FOLDER = Path(__file__).with_name("pages")
STYLE = "pages.css"
ICON = "icon.svg"
PAIRING = "pairing.js"
FILES = {  # loaded by pages → media type
    STYLE: "text/css",
    ICON: "image/svg+xml",
    "icon-waiting.svg": "image/svg+xml",
    "home.css": "text/css",
    "home.js": "text/javascript",
    "live.js": "text/javascript",
    PAIRING: "text/javascript",
}
TIMES = {"day": "%d %B %Y", "moment": "%d %b, %H:%M UTC", "iso": "%Y-%m-%dT%H:%M:%SZ"}  # filter → pattern
POLICY = "default-src 'none'; style-src 'self'; img-src 'self'; base-uri 'none'; frame-ancestors 'none'"
SCRIPT_POLICY = {"content-security-policy": f"{POLICY}; script-src 'self'; connect-src 'self'"}  # runs our own script
# No form-action: Chromium applies it to every redirect after a form, and the last one goes to the client.
HEADERS = {
    "content-type": "text/html; charset=utf-8",
    "cache-control": "no-store",
    "content-security-policy": POLICY,
    "x-frame-options": "DENY",
    "referrer-policy": "same-origin",  # with no-referrer Chromium posts forms with `Origin: null`
    "cross-origin-resource-policy": "same-origin",
}
# Keeps a page that opened ours from controlling it. Not on a page for a client's question: some clients open it in a
# window and wait for their own page there at the end, and this header would cut that tie for good.
OPENER_POLICY = {"cross-origin-opener-policy": "same-origin"}


class PageTemplates:
    """`base` is the path under which all is served, "" at the root; `server` the name that people read. Pages link to
    the account page if the server has one."""

    def __init__(self, base: str, server: str, *, has_account_page: bool = False) -> None:
        self._base = base
        self._server = server
        self._has_account_page = has_account_page
        self._added: dict[str | Path, Any] = {}  # templates of added parts by their names, and of pages by their files

    def render(self, name: str, status: int = 200, *, isolated: bool = True, **values: Any) -> Response:
        """Return a page; `isolated` unless it belongs to a client's question."""
        text = self._templates.get_template(f"{name}.html").render(values)
        return Response(text.encode("utf-8", "replace"), status, HEADERS | (OPENER_POLICY if isolated else {}))

    def render_file(self, file: Path, status: int = 200, **values: Any) -> Response:
        """Return a page that a feature adds, from its own template."""
        if file not in self._added:
            self._added[file] = self._templates.from_string(file.read_text("utf-8"))
        text = self._added[file].render(values)
        return Response(text.encode("utf-8", "replace"), status, HEADERS | OPENER_POLICY)

    def notice(self, status: int, title: str, *sentences: str, isolated: bool = False, **values: Any) -> Response:
        """Return a page of sentences; `isolated` where no client's question leads to it."""
        values = {"again": None, "again_label": "Try again", "about": "", "commands": (), **values}
        return self.render("notice", status, isolated=isolated, title=title, sentences=sentences, **values)

    def render_part(self, name: str, part: str, it: Any) -> str:
        """Return the HTML that a template's macro makes of `it`."""
        return str(getattr(self._templates.get_template(f"{name}.html").module, part)(it))

    def render_added(self, added: PagePart, it: Any) -> str:
        """Return the HTML that the macro of an added part makes of `it`."""
        if added.name not in self._added:
            self._added[added.name] = self._templates.from_string(added.template.read_text("utf-8"))
        return str(getattr(self._added[added.name].module, added.name)(it))

    def static_file(self, name: str) -> Response:
        """Return one of FILES."""
        return Response(_read(name), headers={"cache-control": "public, max-age=86400"}, media_type=FILES[name])

    @cached_property
    def _templates(self) -> Any:
        from jinja2 import Environment, FileSystemLoader, StrictUndefined  # start-up: only pages need it

        environment = Environment(
            loader=FileSystemLoader(FOLDER),
            autoescape=True,
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        environment.filters |= {name: partial(_format_time, pattern) for name, pattern in TIMES.items()}
        environment.filters |= {"lasting": format_duration, "size": format_size}
        environment.filters |= {"shown": _one_line, "lines": _printable_lines, "scope": name_scope}
        names: dict[str, Any] = environment.globals
        names |= {"base": self._base, "server": self._server, "has_account_page": self._has_account_page}
        names |= {"file": self._file_url, "style": self._file_url(STYLE)}
        return environment

    def _file_url(self, name: str) -> str:
        """Return the path of one of FILES, which changes with its content."""
        return f"{self._base}/{name}?{hashlib.sha256(_read(name)).hexdigest()[:8]}"


@lru_cache
def _read(name: str) -> bytes:
    return (FOLDER / name).read_bytes()


def _format_time(pattern: str, when: float) -> str:
    """Return seconds since the epoch in UTC: the person's time zone is unknown."""
    return time.strftime(pattern, time.gmtime(when)).lstrip("0")


def format_duration(seconds: float) -> str:
    """Return a duration in two units at most: "40 ms", "3.2 s", "2 min 5 s"."""
    if seconds < 1:
        return f"{round(seconds * 1000)} ms"
    if seconds < 60:
        return f"{seconds:.1f}".removesuffix(".0") + " s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s" if rest else f"{minutes} min"


def _one_line(text: object, most: int = 200) -> str:
    """Return foreign text on one line of at most `most` characters, with invisible ones escaped."""
    line = " ".join(str(text).split())
    return escape_invisible(line if len(line) <= most else f"{line[: most - 1]}…")


def _printable_lines(text: str) -> str:
    """Return foreign text with its lines, whole: a person must see all of a question."""
    return "\n".join(map(escape_invisible, text.splitlines()))
