"""The pages people see: templates beside this file, and the headers every page has. Knows what is shown; knows nothing
of who may see it.
"""

import hashlib
import time
from functools import cached_property
from pathlib import Path
from typing import Any

from toolgate.transports.exchange import Outgoing

FOLDER = Path(__file__).with_suffix("")
STYLE = "pages.css"
POLICY = "default-src 'none'; style-src 'self'; base-uri 'none'; frame-ancestors 'none'"
# No form-action: Chromium holds it against every redirect that follows a form, and the last one is to the client.
HEADERS = (
    ("content-type", "text/html; charset=utf-8"),
    ("cache-control", "no-store"),
    ("content-security-policy", POLICY),
    ("x-frame-options", "DENY"),
    ("referrer-policy", "same-origin"),  # with no-referrer Chromium posts forms with `Origin: null`
    ("cross-origin-resource-policy", "same-origin"),
)
# Keeps a page that opened ours from steering it. Not where a client asks: some open the question in a window of
# their own and wait for what their own page says there at the end, and this would cut that tie for good.
ALONE = ("cross-origin-opener-policy", "same-origin")


class Pages:
    """`base` is the path under which all is served, "" at the root; `server` what it is called."""

    def __init__(self, base: str, server: str) -> None:
        self._base = base
        self._server = server

    def show(self, name: str, status: int = 200, *, alone: bool = True, **values: Any) -> Outgoing:
        """A page; `alone` if it belongs to no client's question."""
        text = self._templates.get_template(f"{name}.html").render(values)
        return Outgoing(status, text.encode(), [*HEADERS, *([ALONE] if alone else [])])

    def notice(self, status: int, title: str, *sentences: str, alone: bool = True, **values: Any) -> Outgoing:
        """A page that only says something."""
        told = {"again": None, "again_label": "", **values}
        return self.show("notice", status, alone=alone, title=title, sentences=sentences, **told)

    def style(self) -> Outgoing:
        told = [("content-type", "text/css; charset=utf-8"), ("cache-control", "public, max-age=86400")]
        return Outgoing(200, self._css, told)

    @cached_property
    def _css(self) -> bytes:
        return (FOLDER / STYLE).read_bytes()

    @cached_property
    def _templates(self) -> Any:
        from jinja2 import Environment, FileSystemLoader, StrictUndefined  # start-up: only where somebody signs in

        made = Environment(
            loader=FileSystemLoader(FOLDER),
            autoescape=True,
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        version = hashlib.sha256(self._css).hexdigest()[:8]
        made.filters["day"] = _day
        names: dict[str, Any] = made.globals
        names |= {"base": self._base, "server": self._server, "style": f"{self._base}/{STYLE}?{version}"}
        return made


def _day(when: float) -> str:
    """Seconds since the epoch as people write a day; in UTC, since nobody says where they are."""
    return time.strftime("%d %B %Y", time.gmtime(when)).lstrip("0")
