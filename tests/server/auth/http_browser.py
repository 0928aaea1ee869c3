"""Stand in for a person at a browser, over HTTP: follow a client's URL, sign in (or create the first account), read the
consent page, and decide."""

import html
import re
import urllib.parse
from collections.abc import Collection

from tests.clients.raw_http_client import Site
from tests.server.auth.sign_in_server import PASSWORD, Browser, PageAnswer

MOST = 10  # pages between a client's question and its answer: a person would have given up
CODE = re.compile(r"pairing code ([A-Z0-9-]+)")
TICKED = re.compile(r'name="scope" value="([^"]+)" checked')


class Person:
    """A person who uses the server at `site`; `asked` has the text of each consent page."""

    def __init__(self, site: Site, name: str = "ada", password: str = PASSWORD, browser: Browser | None = None) -> None:
        self.asked: list[str] = []
        self._site = site
        self._name, self._password = name, password
        self._browser = browser or Browser(site.port, {})

    def decide(self, url: str, decision: str = "approve", untick: Collection[str] = ()) -> str:
        """Answer the consent page at `url`, and return the URL of the redirect."""
        got = self._get(url)
        for _ in range(MOST):
            if got.status in (302, 303):
                onward = urllib.parse.urljoin(self._site.url, got.location)
                if not self._is_here(onward):
                    return onward
                got = self._get(onward)
            elif 'name="password"' in got.text:
                got = self._sign_in(got)
            elif 'name="decision"' in got.text:
                self.asked.append(html.unescape(got.text))
                ticked = [scope for scope in TICKED.findall(got.text) if scope not in untick]
                got = self._post("/consent", got, scope=ticked, via="", decision=decision)
            else:
                raise AssertionError(f"{got.status}: this is no page to go on from: {got.text[:3000]}")
        raise AssertionError(f"more than {MOST} pages")

    def answer(self, url: str, decision: str = "approve", untick: Collection[str] = ()) -> dict[str, str]:
        """Return the parameters of the redirect."""
        return dict(urllib.parse.parse_qsl(urllib.parse.urlsplit(self.decide(url, decision, untick)).query))

    def _sign_in(self, page: PageAnswer) -> PageAnswer:
        fields = {"username": self._name, "password": self._password}
        if 'name="code"' in page.text:
            fields["code"] = CODE.findall(self._site.log())[-1]
        return self._post("/login", page, **fields)

    def _get(self, url: str) -> PageAnswer:
        assert self._is_here(url), f"{url} is not the server's"
        return self._browser.get(url.removeprefix(self._site.url))

    def _post(self, path: str, page: PageAnswer, **fields: str | list[str]) -> PageAnswer:
        hidden = {"csrf": page.field("csrf"), "question": page.field("question")}
        return self._browser.post(path, {**hidden, **fields}, origin="/".join(self._site.url.split("/", 3)[:3]))

    def _is_here(self, url: str) -> bool:
        return url.startswith(self._site.url + "/")
