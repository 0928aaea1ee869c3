"""A person who switches mounted servers and their tools off and on, in a browser without a screen."""

import html
import re
from collections.abc import Collection

from tests.server.auth.sign_in_server import Browser, PageAnswer
from tests.transports.web.test_home import _csrf as find_csrf

BOX = re.compile(r'name="on" value="([^"]*)"( checked)?>\n<label [^>]*><span [^>]*><code>([^<]*)</code>')


class Chooser:
    def __init__(self, browser: Browser) -> None:
        self.browser = browser

    def first_page(self) -> str:
        return self.browser.get("/").text

    def switch(self, mount: str, *, off: bool) -> PageAnswer:
        """Switch a whole mount."""
        csrf = find_csrf(self.first_page())
        return self.browser.post("/", {"csrf": csrf, "mount-off" if off else "mount-on": mount})

    def read(self, mount: str, page: int = 1) -> dict[str, bool]:
        """Return the tools on the mount's page: whether each is on."""
        boxes = BOX.findall(self.browser.get(f"/mounts/tools?name={mount}&page={page}").text)
        return {html.unescape(name): bool(checked) for _, checked, name in boxes}

    def choose(self, mount: str, off: Collection[str], page: int = 1) -> PageAnswer:
        """Have these tools off, and the others of the page on."""
        answer = self.browser.get(f"/mounts/tools?name={mount}&page={page}")
        shown = {id: html.unescape(name) for id, _, name in BOX.findall(answer.text)}
        fields = [("csrf", answer.field("csrf")), ("name", mount), ("page", str(page))]
        fields += [("shown", id) for id in shown] + [("on", id) for id, name in shown.items() if name not in off]
        return self.browser.post("/mounts/tools", fields)
