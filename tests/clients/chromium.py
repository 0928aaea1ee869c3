"""A person with a real Chromium, and the rules that every page keeps."""

import contextlib
import shutil
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.clients.raw_client import PATIENCE

FLAGS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
SIZES = {"phone": (390, 844), "desktop": (1280, 800), "narrow": (320, 640)}
# Messages of Chromium itself: of every status from 400 on, and of a field that had the focus before `autofocus`
EXPECTED = ("Failed to load resource", "Autofocus")
# Put a page into the background as Chromium does: a browser without a screen shows all of its tabs.
HIDE = """() => {
  Object.defineProperty(document, 'hidden', {value: true, configurable: true});
  Object.defineProperty(document, 'visibilityState', {value: 'hidden', configurable: true});
  document.dispatchEvent(new Event('visibilitychange'));
}"""
# Record a page's notifications: a browser without a screen refuses them all.
NOTIFICATIONS = """
window.shown = [];
window.Notification = class {
  static permission = 'default';
  static async requestPermission() { return window.Notification.permission = 'granted'; }
  constructor(title, options) { window.shown.push([title, options.body]); }
  close() {}
};
"""
# The contrast of each text with its background, and of the edges of fields and buttons (WCAG 2.2).
CONTRAST = """() => {
  const parse = c => { const n = c.match(/[\\d.]+/g).map(Number); return n.length < 4 ? [...n, 1] : n };
  const linear = v => (v /= 255) <= .04045 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4;
  const light = c => .2126 * linear(c[0]) + .7152 * linear(c[1]) + .0722 * linear(c[2]);
  const ground = e => {
    for (; e; e = e.parentElement) {
      const c = parse(getComputedStyle(e).backgroundColor);
      if (c[3] > 0) return c;
    }
    return [255, 255, 255, 1];
  };
  const ratio = (a, b) => {
    const [x, y] = [light(parse(a)), light(b)].sort((p, q) => q - p);
    return (x + .05) / (y + .05);
  };
  const found = [];
  for (const e of document.querySelectorAll('body *')) {
    if (!e.getClientRects().length) continue;
    const style = getComputedStyle(e), told = e.outerHTML.slice(0, 80);
    if ([...e.childNodes].some(n => n.nodeType === 3 && n.data.trim()))
      found.push([ratio(style.color, ground(e)), 4.5, told]);
    if (e.matches('.field input, button, .button'))
      found.push([ratio(style.borderTopColor, ground(e.parentElement)), 3, told]);
  }
  return found.filter(([is, wanted]) => is < wanted);
}"""
UNNAMED = """() => [...document.querySelectorAll('input:not([type=hidden]), button, a')]
  .filter(e => !(e.labels?.length || e.textContent.trim() || e.getAttribute('aria-label'))).map(e => e.outerHTML)"""
TOO_WIDE = "() => document.documentElement.scrollWidth - document.documentElement.clientWidth"


@contextlib.contextmanager
def browser() -> Iterator[Any]:
    """Yield Chromium, as Playwright drives it."""
    program = shutil.which("chromium-headless-shell")
    if program is None:
        pytest.fail("Chromium is missing; install it with: make chromium")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=program, args=list(FLAGS))
        yield chromium
        chromium.close()


def confirm(page: Any, name: str) -> None:
    """Press a button with a second step, which opens under it."""
    page.locator(f'summary[aria-label="{name} …"]').click()
    page.get_by_role("button", name=name, exact=True).click()


@contextlib.contextmanager
def people(chromium: Any) -> Iterator[Callable[..., Any]]:
    """Yield `arrive(size, …)`, which returns the first tab of a person with their own cookies.

    Requests that leave this machine and console errors fail the test in the end."""
    contexts: list[Any] = []
    wrong: list[str] = []

    def arrive(size: str = "desktop", **how: Any) -> Any:
        width, height = SIZES[size]
        context = chromium.new_context(viewport={"width": width, "height": height}, **how)
        context.set_default_timeout(PATIENCE * 1_000)
        context.on("request", lambda request: "//127.0.0.1:" in request.url or wrong.append(request.url))
        context.on("console", lambda said: any(part in said.text for part in EXPECTED) or wrong.append(said.text))
        context.on("weberror", lambda error: wrong.append(str(error.error)))
        contexts.append(context)
        return context.new_page()

    yield arrive
    for context in contexts:
        context.close()
    assert wrong == []
