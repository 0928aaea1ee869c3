"""ReadDocs with a real Chromium, against a web on loopback. 127.0.0.1 is allowed and stands for the public Internet;
127.0.0.2, where the victim listens, is not."""

import asyncio
import base64
import contextlib
import hashlib
import io
import os
import signal
import socket
import tempfile
import zlib
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import serialization

from tests.tools.api.outbound.test_fetch import certificate
from tests.tools.fake_web_site import Answer, Request, Site, redirect, site
from tests.tools.tool_calls import lend, text
from toolgate.tools.api.content import Output
from toolgate.tools.api.context.context import Context
from toolgate.tools.api.context.services import Settings
from toolgate.tools.api.outbound.fetch import Web
from toolgate.tools.builtin.docs import read_docs
from toolgate.tools.reading.browser import browser as browsers
from toolgate.tools.reading.browser import page_load, proxy
from toolgate.tools.reading.browser.find_chromium import find_chromium
from toolgate.tools.reading.pages.local_page_reader import LocalPageReader
from toolgate.tools.workspace.processes import process_tree

KINDS = ("chromium-headless-shell", "chromium")  # the preferred one, and the most common one
SOAK = pytest.mark.soak
BOUND = 60.0  # seconds for any step: test machines are busy
PUBLIC, PRIVATE = "127.0.0.1", "127.0.0.2"
SENTENCE = f"refused: {PRIVATE} is loopback; the operator can allow it with --allow-private {PRIVATE}"
PROSE = "A paragraph of running text which is long enough to be taken for the content of a page by anyone. " * 3


@dataclass
class Victim:
    """A forbidden listener: on one port, TCP and UDP."""

    port: int = 0
    seen: list[str] = field(default_factory=list)


class Datagrams(asyncio.DatagramProtocol):
    def __init__(self, victim: Victim) -> None:
        self.victim = victim

    def datagram_received(self, data: bytes, addr: Any) -> None:
        self.victim.seen.append("udp")


@dataclass
class World:
    """One browser, one site and one victim for all tests of this file, in one event loop."""

    runner: asyncio.Runner
    reader: LocalPageReader
    place: Site
    victim: Victim
    names: dict[str, list[Sequence[str]]]
    program: str
    looked_up: list[str] = field(default_factory=list)

    def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        return self.runner.run(asyncio.wait_for(work, BOUND))

    def url(self, path: str = "/", host: str = PUBLIC) -> str:
        return self.place.url(path, host)

    async def call(self, url: str, principal: str = "me", hold: float = 43.0, **arguments: Any) -> Output:
        nothing: Any = None
        lent = lend(principal=principal, reader=self.reader, settings=Settings(hold=hold))
        return await read_docs.run({"url": url, **arguments}, Context(lent, nothing))

    def read(self, answers: dict[str, Answer], path: str = "/", host: str = PUBLIC, **arguments: Any) -> Output:
        self.place.pages.clear()
        self.place.pages.update(answers)
        self.place.requests.clear()
        return self.run(self.call(self.url(path, host), **arguments))


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run in both kinds of Chromium; in `make test` the second runs only the tests of confinement."""
    if "world" in metafunc.fixturenames:
        second = pytest.param(KINDS[1], marks=() if metafunc.definition.get_closest_marker("both") else SOAK)
        metafunc.parametrize("world", [KINDS[0], second], indirect=True, scope="module")


@pytest.fixture(scope="module")
def world(request: pytest.FixtureRequest) -> Iterator[World]:
    chromium = find_chromium(request.param, os.environ.get("PATH"))
    assert chromium is not None
    names: dict[str, list[Sequence[str]]] = {}

    looked_up: list[str] = []

    async def resolve(host: str, port: int) -> Sequence[str]:
        looked_up.append(host)
        answers = names.get(host)
        if answers is None:
            return [host] if ":" in host or host.replace(".", "").isdigit() else []
        return answers.pop(0) if len(answers) > 1 else answers[0]

    async def opened(stack: contextlib.AsyncExitStack) -> tuple[Site, Victim]:
        victim = Victim()

        def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            victim.seen.append("tcp")
            writer.close()

        server = await asyncio.start_server(connected, PRIVATE, 0)
        stack.callback(server.close)
        victim.port = server.sockets[0].getsockname()[1]
        loop = asyncio.get_running_loop()
        transport, _ = await loop.create_datagram_endpoint(lambda: Datagrams(victim), local_addr=(PRIVATE, victim.port))
        stack.callback(transport.close)
        return await stack.enter_async_context(site()), victim

    with asyncio.Runner() as runner:
        stack = contextlib.AsyncExitStack()
        place, victim = runner.run(opened(stack))
        reader = LocalPageReader(Web([PUBLIC], resolve=resolve), chromium)
        try:
            yield World(runner, reader, place, victim, names, chromium, looked_up)
        finally:
            runner.run(reader.close())
            runner.run(stack.aclose())
            assert left_behind() == []


def left_behind() -> list[str]:
    """Return command lines of leftover browser processes in this process's tree."""
    return [line for pid in process_tree.descendants(os.getpid()) if "toolgate-browser" in (line := command(pid))]


def command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().decode().replace("\0", " ")
    except OSError:
        return ""


def html(body: str, head: str = "<title>The title</title>") -> Answer:
    page = f"<!doctype html><html><head>{head}</head><body>{body}</body></html>"
    return 200, {"content-type": "text/html; charset=utf-8"}, page.encode()


def test_scripts_run(world: World) -> None:
    output = world.read({"/": html(f"<div id=a></div><script>a.innerHTML = '<p>Made: {PROSE}</p>'</script>")})
    assert text(output) == f"Title: The title\nURL: {world.url()}\n\nMade: {PROSE.strip()}"
    assert output.structured is not None
    assert (output.structured.rendered, output.structured.status) == (True, 200)


def test_the_source_is_the_one_that_scripts_made(world: World) -> None:
    output = world.read({"/": html("<p id=a></p><script>a.textContent = 'made'</script>")}, format="html")
    assert '<p id="a">made</p>' in text(output)


def test_late_content_is_waited_for(world: World) -> None:
    late = "<p id=a></p><script>setTimeout(() => { a.textContent = 'came late' }, %d)</script>"
    assert "came late" in text(world.read({"/": html(late % 300)}))
    assert "came late" in text(world.read({"/": html(late % 1800)}, wait_ms=2_500))


def test_a_page_is_loaded_although_the_wait_that_is_asked_for_takes_all_the_time(world: World) -> None:
    output = world.read({"/": html(f"<p>Here: {PROSE}</p>")}, wait_ms=30_000, hold=8.0)
    assert "Here: " in text(output)
    assert "waited only " in text(output)


def test_lazy_content_is_scrolled_to(world: World) -> None:
    body = """<p>above</p><div style="height: 5000px"></div><div id=a>empty</div><script>
    new IntersectionObserver(async (entries, me) => {
      if (entries[0].isIntersecting) { me.disconnect(); a.textContent = await (await fetch('/part')).text() }
    }).observe(a)</script>"""
    output = world.read({"/": html(body), "/part": (200, {"content-type": "text/plain"}, b"the lazy part")})
    assert "the lazy part" in text(output)


def test_frames_are_read_where_the_page_itself_has_little(world: World) -> None:
    world.names["other.test"] = [[PUBLIC]]
    framed = f'<a href="next.html">on</a><p>{PROSE}</p><script>document.body.append("by script")</script>'
    pages = {
        "/": html(f'<iframe src="/in/a"></iframe><iframe src="{world.url("/in/b", "other.test")}"></iframe>'),
        "/in/a": html(f"<p>same site</p>{framed}"),
        "/in/b": html(f"<p>other site</p>{framed}"),
        "/set": (200, {"content-type": "text/html"}, b'<title>t</title><frameset><frame src="/in/a"></frameset>'),
    }
    answer = text(world.read(pages))
    for expected in (
        "same site",
        "other site",
        "by script",
        f"[on]({world.url('/in/next.html')})",
        f"[on]({world.url('/in/next.html', 'other.test')})",
    ):
        assert expected in answer, expected
    assert "same site" in text(world.read(pages, "/set"))


def test_a_wall_that_covers_the_text_does_not_hide_it(world: World) -> None:
    wall = '<div style="position:fixed;inset:0;background:#fff"><button>Accept all cookies</button></div>'
    answer = text(world.read({"/": html(f"<main><p>Under: {PROSE}</p></main>{wall}<script>alert(1)</script>")}))
    assert "Under: " in answer
    assert PROSE.strip() in answer


def test_a_component_shows_what_is_in_its_shadow(world: World) -> None:
    script = "a.attachShadow({mode: 'open'}).innerHTML = '<h2>in the shadow</h2><slot></slot>'"
    answer = text(world.read({"/": html(f"<div id=a><b>given</b></div><script>{script}</script>")}))
    assert "## in the shadow" in answer
    assert "given" in answer


def test_the_url_is_where_redirects_and_scripts_led(world: World) -> None:
    pages = {
        "/": redirect("/second"),
        "/second": html("<script>setTimeout(() => { location.href = '/third' }, 100)</script>"),
        "/third": html(f"<p>Here: {PROSE}</p>"),
    }
    output = world.read(pages)
    assert "Here: " in text(output)
    assert output.structured is not None
    assert output.structured.url == world.url("/third")


def test_a_fault_is_an_error_with_what_scripts_made_of_it(world: World) -> None:
    body = b"<title>Gone</title><p id=a></p><script>a.textContent = 'moved away'</script>"
    output = world.read({"/": (404, {"content-type": "text/html"}, body)})
    assert output.is_error
    assert "answered with HTTP status 404 Not Found" in text(output)
    assert "moved away" in text(output)


def test_a_page_that_leads_to_another_program_is_read_at_once(world: World) -> None:
    output = world.read({"/": html(f"<p>Here: {PROSE}</p><script>location = 'mailto:me@example.org'</script>")})
    assert "Here: " in text(output)
    assert "not finished" not in text(output)


def test_a_page_that_goes_on_for_ever_is_read_as_it_is(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page_load, "MAX_HOPS", 3)
    output = world.read({"/": html(f"<p>Here: {PROSE}</p><script>location.reload()</script>")})
    assert "Here: " in text(output)
    assert "it redirects to other pages without end" in text(output)


@pytest.mark.parametrize(("status", "asks"), [(401, {"www-authenticate": 'Basic realm="page"'}), (404, {})])
def test_an_error_status_without_a_body_is_an_error(world: World, status: int, asks: dict[str, str]) -> None:
    output = world.read({"/": (status, {"content-type": "text/html", **asks}, b"")})
    assert output.is_error
    assert f"{world.url()} answered with HTTP status {status}" in text(output)
    assert not [request for request in world.place.requests if "authorization" in request.headers]


def test_a_page_that_breaks_off_is_read_as_far_as_it_came(world: World) -> None:
    shown = asyncio.Event()  # Chromium loses data that it has not processed when the connection ends

    async def half(request: Request) -> None:
        body = f"<p>Half: {PROSE}</p><script>fetch('/shown')</script>".encode()
        await request.send(200, {"content-type": "text/html", "content-length": "100000"}, body)
        await shown.wait()

    async def told(_: Request) -> None:
        shown.set()

    output = world.read({"/": half, "/shown": told})
    assert "it broke off: read as far as it came" in text(output)
    assert "Half: " in text(output)


@SOAK
def test_a_page_that_can_not_be_decoded_is_an_error(world: World) -> None:
    output = world.read({"/": (200, {"content-type": "text/html", "content-encoding": "gzip"}, b"no such thing")})
    assert "it broke off: read as far as it came" in text(output)


@pytest.mark.parametrize("count", [12, pytest.param(30, marks=SOAK)])
def test_too_many_redirects_are_an_error(world: World, count: int) -> None:
    output = world.read({f"/{n}": redirect(f"/{n + 1}") for n in range(count)} | {f"/{count}": html("x")}, "/0")
    assert output.is_error
    assert "redirects more than 10 times" in text(output)


# --- forbidden targets ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "way", ["at once", "by redirects", "by script", pytest.param("by refresh", marks=SOAK), "by form"]
)
def test_a_page_at_a_private_address_is_refused(world: World, way: str) -> None:
    aim = f"http://{PRIVATE}:{world.victim.port}/secret"
    world.victim.seen.clear()
    pages: dict[str, Answer] = {
        "/by redirects": redirect("/on"),
        "/on": redirect("/further", 307),
        "/further": redirect(aim, 301),
        "/by script": html(f"<p>{PROSE}</p><script>location.href = '{aim}'</script>"),
        "/by refresh": html("", f'<meta http-equiv=refresh content="0; url={aim}">'),
        "/by form": html(f'<form id=f method=post action="{aim}"></form><script>f.submit()</script>'),
    }
    if way == "at once":
        output = world.run(world.call(aim))
    else:
        pages = {path.replace(" ", "%20"): page for path, page in pages.items()}
        output = world.read(pages, f"/{way}".replace(" ", "%20"))
    assert output.is_error
    assert text(output) == SENTENCE
    assert world.victim.seen == []


@pytest.mark.parametrize(
    "url",
    [
        "file:///etc/passwd",
        "data:text/html,x",
        pytest.param("javascript:alert(1)", marks=SOAK),
        pytest.param("chrome://version", marks=SOAK),
        pytest.param("view-source:http://127.0.0.1/", marks=SOAK),
        pytest.param("ftp://127.0.0.1/", marks=SOAK),
        pytest.param("blob:http://127.0.0.1/x", marks=SOAK),
        pytest.param("about:blank", marks=SOAK),
        "http://me:secret@127.0.0.1/",
    ],
)
def test_a_url_that_is_not_http_is_refused(world: World, url: str) -> None:
    output = world.run(world.call(url))
    assert output.is_error
    output = world.read({"/": redirect(url)})
    assert output.is_error or "secret" in url
    assert "root:" not in text(output)


def test_a_page_that_turns_itself_into_something_else_is_refused(world: World) -> None:
    blob = "location.href = URL.createObjectURL(new Blob(['<p>made up'], {type: 'text/html'}))"
    output = world.read({"/": html(f"<script>{blob}</script>")})
    assert output.is_error
    assert "only http and https pages are read" in text(output)
    output = world.read({"/": html("<script>location.href = 'about:blank'</script>")})
    assert output.is_error


ATTACKS = """
const host = '%s', aim = 'http://' + host + '/';
const quietly = (attack) => { try { const done = attack(); if (done && done.catch) done.catch(() => 0) } catch {} };
const add = (tag, values) => document.head.append(Object.assign(document.createElement(tag), values));
quietly(() => fetch(aim, {mode: 'no-cors'}));
quietly(() => { const ask = new XMLHttpRequest(); ask.open('POST', aim); ask.send('x') });
quietly(() => new WebSocket('ws://' + host + '/'));
quietly(() => new EventSource(aim));
quietly(() => navigator.sendBeacon(aim, 'x'));
quietly(() => document.body.append(Object.assign(new Image(), {src: aim})));
quietly(() => document.body.append(Object.assign(document.createElement('iframe'), {src: aim})));
quietly(() => document.body.append(Object.assign(document.createElement('object'), {data: aim})));
quietly(() => document.body.append(Object.assign(document.createElement('video'), {src: aim, preload: 'auto'})));
quietly(() => add('script', {src: aim}));
quietly(() => add('link', {rel: 'stylesheet', href: aim}));
for (const rel of ['prefetch', 'preconnect', 'dns-prefetch', 'prerender', 'modulepreload'])
  quietly(() => add('link', {rel, href: aim}));
quietly(() => add('script', {type: 'speculationrules', textContent: JSON.stringify({prefetch: [{urls: [aim]}]})}));
quietly(() => open(aim));
const work = `fetch('${aim}').catch(() => 0); try { new WebSocket('ws://${host}/') } catch {};
              try { importScripts('${aim}') } catch {}`;
const place = URL.createObjectURL(new Blob([work], {type: 'text/javascript'}));
quietly(() => new Worker(place));
quietly(() => new SharedWorker(place));
quietly(() => navigator.serviceWorker.register('/worker.js'));
const bare = document.body.appendChild(document.createElement('iframe')).contentWindow;
for (const Peer of [window.RTCPeerConnection, bare.RTCPeerConnection]) quietly(() => {
  const peer = new Peer({iceServers: [{urls: 'stun:' + host}, {urls: 'turn:' + host + '?transport=tcp',
                                       username: 'a', credential: 'b'}]});
  peer.createDataChannel('x');
  return peer.createOffer().then((offer) => peer.setLocalDescription(offer));
});
quietly(() => new WebTransport('https://' + host + '/').ready);
"""


@pytest.mark.both
@pytest.mark.brief(f"{KINDS[0]}-{PRIVATE}", f"{KINDS[0]}-private.test", f"{KINDS[1]}-{PRIVATE}")
@pytest.mark.parametrize("host", [PRIVATE, pytest.param("[::ffff:127.0.0.2]", marks=SOAK), "private.test"])
def test_nothing_a_page_does_reaches_a_private_address(world: World, host: str) -> None:
    world.names["private.test"] = [[PRIVATE]]
    world.victim.seen.clear()
    attacks = ATTACKS % f"{host}:{world.victim.port}"
    output = world.read(
        {
            "/": html(f"<p>Innocent: {PROSE}</p><script>{attacks}</script>"),
            "/worker.js": (200, {"content-type": "text/javascript"}, attacks.encode()),
        },
        wait_ms=1_000,
    )
    assert not output.is_error
    assert "Innocent: " in text(output)
    assert "a part of it was not loaded: refused: " in text(output)
    assert world.victim.seen == []
    assert not [request for request in world.place.requests if request.path == "/worker.js"]


def test_windows_that_a_page_opens_are_not_opened(world: World) -> None:
    script = "for (let n = 0; n < 100; n++) open('/window' + n)"
    output = world.read({"/": html(f"<p>Here: {PROSE}</p><script>{script}</script>")})
    assert "Here: " in text(output)
    assert not [request for request in world.place.requests if request.path.startswith("/window")]


def test_a_name_that_rebinds_is_looked_up_and_checked_each_time(world: World) -> None:
    world.names["rebinds.test"] = [[PUBLIC], [PRIVATE]]
    world.victim.seen.clear()
    output = world.read({"/": redirect("/again")}, host="rebinds.test")
    assert output.is_error
    assert "rebinds.test has the address 127.0.0.2" in text(output)
    world.names["rebinds.test"] = [[PUBLIC, PRIVATE]]
    output = world.read({"/": html("x")}, host="rebinds.test")
    assert output.is_error
    assert world.victim.seen == []


def test_only_the_servers_own_pages_get_through_the_proxy(world: World) -> None:
    browser = world.reader.browser
    assert browser is not None
    world.read({"/": html("x")})
    world.place.requests.clear()

    async def asked(head: str) -> bytes:
        reader, writer = await asyncio.open_connection("127.0.0.1", browser.proxy.port)
        writer.write(head.encode())
        answer = await reader.readuntil(b"\r\n")
        writer.close()
        return answer

    host = f"{PUBLIC}:{world.place.port}"
    wrong = "Proxy-Authorization: Basic eDp5\r\n"
    for head in (
        f"GET {world.url()} HTTP/1.1\r\nHost: {host}\r\n\r\n",
        f"GET {world.url()} HTTP/1.1\r\nHost: {host}\r\n{wrong}\r\n",
        f"CONNECT {host} HTTP/1.1\r\nHost: {host}\r\n\r\n",
    ):
        assert b" 407 " in world.run(asked(head))
    for head in (f"GET / HTTP/1.1\r\nHost: {host}\r\n\r\n", "GET file:///etc/passwd HTTP/1.1\r\nHost: x\r\n\r\n"):
        assert b" 502 " in world.run(asked(head))
    assert world.place.requests == []


# --- size, time, kinds ---------------------------------------------------------------------------------------------


def flood(total: int, kind: str = "text/html") -> Callable[[Request], Awaitable[None]]:
    chunk = b"more " * 8192

    async def answer(request: Request) -> None:
        await request.send(200, {"content-type": kind, "content-length": str(total)})
        for _ in range(total // len(chunk)):
            request.writer.write(chunk)
            await request.writer.drain()

    return answer


def test_a_page_of_a_gigabyte_is_stopped(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(proxy, "MAX_BYTES", 4 * 2**20)
    output = world.read({"/": flood(2**30)}, format="html")
    assert "4 MiB" in text(output) or output.is_error
    assert len(text(output)) < 100_000
    output = world.read({"/": html(f"<p>Small: {PROSE}</p><script>fetch('/big')</script>"), "/big": flood(2**30)})
    assert "Small: " in text(output)
    assert "it was stopped at its limit of 4 MiB" in text(output)


@pytest.mark.soak
def test_a_page_that_unpacks_to_a_gigabyte_costs_its_own_process_at_most(world: World) -> None:
    packer = zlib.compressobj(9, wbits=31)
    bomb = b"".join([*(packer.compress(b"a" * 2**22) for _ in range(256)), packer.flush()])
    headers = {"content-type": "text/html", "content-encoding": "gzip"}
    output = world.read({"/": (200, headers, b"" + bomb)})
    assert len(text(output)) < 100_000
    assert "Fine: " in text(world.read({"/": html(f"<p>Fine: {PROSE}</p>")}))


def test_a_page_that_takes_all_memory_is_ended_and_no_other(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(browsers, "PAGE_MEMORY", 256 * 2**20)
    greedy = "let all = []; setInterval(() => all.push(new Uint8Array(2 ** 25).fill(1)), 20)"
    world.place.pages.clear()
    world.place.pages.update({"/greedy": html(f"<script>{greedy}</script>"), "/": html(f"<p>Fine: {PROSE}</p>")})

    async def both() -> list[Output]:
        calls = [world.call(world.url("/greedy"), wait_ms=20_000), world.call(world.url("/"), wait_ms=3_000)]
        return list(await asyncio.gather(*calls))

    greedy_output, output = world.run(both())
    assert greedy_output.is_error
    assert "memory" in text(greedy_output)
    assert "Fine: " in text(output)


@pytest.mark.soak
def test_a_page_that_has_the_browser_store_without_end_costs_that_browser(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(browsers, "PAGE_MEMORY", 300 * 2**20)
    hoard = """(async () => {
      const folder = await navigator.storage.getDirectory();
      for (let n = 0; n < 500; n++) {
        const file = await (await folder.getFileHandle('f' + n, {create: true})).createWritable();
        await file.write(new Uint8Array(2 ** 24));
        await file.close();
      }
    })()"""
    output = world.read({"/": html(f"<script>{hoard}</script>"), "/next": html("<p>next")}, wait_ms=25_000)
    assert output.is_error
    assert "the browser ended" in text(output)
    assert "next" in text(world.run(world.call(world.url("/next"))))


async def dripping(request: Request) -> None:
    await request.send(200, {"content-type": "text/html"})
    while True:
        request.writer.write(b"<p>a drop")
        await request.writer.drain()
        await asyncio.sleep(0.05)


async def silent(request: Request) -> None:
    await asyncio.Event().wait()


def test_a_page_that_never_stops_loading_is_read_as_it_is(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page_load, "PAGE_TIME", 3.0)
    output = world.read({"/": dripping})
    assert "a drop" in text(output)
    assert "it had not finished loading" in text(output)
    output = world.read({"/": html(f"<p>Here: {PROSE}</p><img src=/never>"), "/never": silent})
    assert "Here: " in text(output)


def test_a_page_that_never_begins_is_given_up(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page_load, "PAGE_TIME", 1.0)
    output = world.read({"/": silent})
    assert output.is_error
    assert "sent nothing within 1 s" in text(output)


def test_a_browser_that_starts_too_late_for_the_page_is_an_error(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page_load, "PAGE_TIME", -1.0)
    output = world.read({"/": silent})
    assert output.is_error
    assert "left no time to load" in text(output)


@pytest.mark.parametrize("when", ["onload = for_ever", pytest.param("setTimeout(for_ever, 300)", marks=SOAK)])
def test_a_page_whose_scripts_never_end_is_still_read(world: World, monkeypatch: pytest.MonkeyPatch, when: str) -> None:
    monkeypatch.setattr(page_load, "PAGE_TIME", 3.0)
    output = world.read({"/": html(f"<p>Here: {PROSE}</p><script>function for_ever() {{ for (;;); }} {when}</script>")})
    assert "Here: " in text(output)
    assert "did not finish and were stopped" in text(output) or "it had not finished loading" in text(output)


@pytest.mark.soak
def test_a_page_that_changes_for_ever_is_read_after_a_while(world: World) -> None:
    script = "setInterval(() => { a.textContent = 'now ' + Date.now() }, 50)"
    assert "now " in text(world.read({"/": html(f"<p id=a></p><script>{script}</script>")}))


@pytest.mark.parametrize(
    ("kind", "body", "expected"),
    [
        pytest.param("text/html; charset=windows-1251", "<p>Привет".encode("cp1251"), "Привет", marks=SOAK),
        ("text/html", '<meta charset="shift_jis"><p>日本語'.encode("shift_jis"), "日本語"),
        pytest.param("text/html; charset=utf-8", b"<p>broken \xff here", "broken \ufffd here", marks=SOAK),
    ],
)
def test_a_page_is_read_in_its_encoding(world: World, kind: str, body: bytes, expected: str) -> None:
    assert expected in text(world.read({"/": (200, {"content-type": kind}, body)}))


@pytest.mark.parametrize(
    ("kind", "body", "expected"),
    [
        ("application/json", b'{"a": [1, 2]}', '{"a": [1, 2]}'),
        pytest.param("text/plain; charset=utf-8", "plain <b>ü".encode(), "plain <b>ü", marks=SOAK),
        pytest.param(
            *("application/rss+xml", b"<?xml version='1.0'?><rss><channel/></rss>", "<rss><channel/></rss>"), marks=SOAK
        ),
    ],
)
def test_text_that_is_no_html_stays_as_it_is(world: World, kind: str, body: bytes, expected: str) -> None:
    output = world.read({"/": (200, {"content-type": kind}, body)})
    assert text(output).endswith(f"\n\n{body.decode()}")
    assert output.structured is not None
    assert (output.structured.format, output.structured.rendered) == ("text", False)
    assert expected in text(output)


@pytest.mark.parametrize(
    ("headers", "named"),
    [
        pytest.param({"content-type": "application/zip"}, "application/zip", marks=SOAK),
        pytest.param({"content-type": "image/png"}, "image/png", marks=SOAK),
        ({"content-type": "application/octet-stream", "content-disposition": "attachment; filename=a.exe"}, "octet"),
    ],
)
def test_other_files_are_named_and_not_downloaded(world: World, headers: dict[str, str], named: str) -> None:
    output = world.read({"/": (200, headers, b"\x00\x01\x02")})
    assert output.is_error
    assert named in text(output)
    assert "not text" in text(output)


def pdf(lines: Sequence[str]) -> bytes:
    """A PDF of one page for each line."""
    objects = ["<< /Type /Catalog /Pages 2 0 R >>"]
    kids = " ".join(f"{4 + 2 * n} 0 R" for n in range(len(lines)))
    objects.append(f"<< /Type /Pages /Kids [{kids}] /Count {len(lines)} >>")
    objects.append("<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica >>")
    for number, line in enumerate(lines):
        stream = f"BT /F1 12 Tf 72 720 Td ({line}) Tj ET"
        parent = f"/Parent 2 0 R /MediaBox [0 0 612 792] /Contents {5 + 2 * number} 0 R"
        objects.append(f"<< /Type /Page {parent} /Resources << /Font << /F1 3 0 R >> >> >>")
        objects.append(f"<< /Length {len(stream)} >>\nstream\n{stream}\nendstream")
    out = io.BytesIO(b"%PDF-1.4\n")
    out.seek(0, 2)
    places = []
    for number, content in enumerate(objects, 1):
        places.append(out.tell())
        out.write(f"{number} 0 obj\n{content}\nendobj\n".encode())
    start = out.tell()
    rows = "".join(f"{place:010} 00000 n \n" for place in places)
    out.write(f"xref\n0 {len(objects) + 1}\n0000000000 65535 f \n{rows}".encode())
    out.write(f"trailer << /Size {len(objects) + 1} /Root 1 0 R >>\nstartxref\n{start}\n%%EOF".encode())
    return out.getvalue()


@pytest.mark.parametrize(
    "headers", [pytest.param({}, marks=SOAK), {"content-disposition": "attachment; filename=a.pdf"}]
)
def test_a_pdf_is_read_as_text_and_never_in_the_browser(world: World, headers: dict[str, str]) -> None:
    body = pdf(["The first page", "The second page"])
    output = world.read({"/": (200, {"content-type": "application/pdf", **headers}, body)})
    assert text(output) == f"URL: {world.url()}\n\nThe first page\n\nThe second page"
    output = world.read({"/": (200, {"content-type": "application/pdf"}, body[:300])})
    assert output.is_error
    assert "is a PDF that can't be read" in text(output)


def test_a_long_page_is_read_on_where_it_was_cut(world: World) -> None:
    body = "".join(f"<p>line {n} of a long text</p>" for n in range(6_000))
    first = text(world.read({"/": html(body)}))
    assert len(first) < 100_000
    url = first.partition("read on with ")[2].partition(" ")[0].partition("\n")[0]
    head, _, offset = url.partition("#toolgate-offset=")
    assert head == world.url()
    rest = text(world.run(world.call(f"{world.url()}#toolgate-offset={offset.partition(')')[0]}")))
    assert "line 5999 of a long text" in rest
    last = int(first.rstrip().rsplit("line ", 1)[1].split()[0])
    assert f"line {last + 1} of a long text" in rest
    assert f"line {last} of" not in rest


# --- isolation, and leftovers --------------------------------------------------------------------------------------


def test_nothing_is_kept_from_one_call_to_the_next(world: World) -> None:
    script = "a.textContent = 'has: ' + document.cookie + localStorage.x; document.cookie = localStorage.x = 'kept'"
    page: Answer = (
        200,
        {"content-type": "text/html", "set-cookie": "secret=1", "cache-control": "max-age=1000"},
        f"<p id=a></p><script>{script}</script>".encode(),
    )
    for principal in ("me", "you", "me"):
        output = world.read({"/": page}, principal=principal)
        assert "has: undefined" in text(output) or "has: secret=1undefined" in text(output)
        assert all("cookie" not in request.headers for request in world.place.requests)
        assert [request.path for request in world.place.requests][:1] == ["/"]


def chromium_pid_or_none(world: World) -> int | None:
    held = [pid for pid in process_tree.descendants(os.getpid()) if "--type=" not in command(pid)]
    return next(
        (pid for pid in held if "--remote-debugging-pipe" in command(pid) and "reaper.py" not in command(pid)), None
    )


def chromium_pid(world: World) -> int:
    pid = chromium_pid_or_none(world)
    assert pid is not None
    return pid


@pytest.mark.both
def test_the_browsers_sandbox_is_on_and_it_inherits_nothing_of_the_servers(world: World) -> None:
    world.read({"/": html("x")})
    pid = chromium_pid(world)
    assert "--no-sandbox" not in command(pid)
    assert world.reader.browser is not None
    assert world.reader.browser.sandboxed
    driver = next(pid for pid in process_tree.descendants(os.getpid()) if "run-driver" in command(pid))
    for child in (pid, driver):
        environment = Path(f"/proc/{child}/environ").read_bytes().rstrip(b"\0").split(b"\0")
        held = dict(line.decode().split("=", 1) for line in environment)
        usual = {"PATH": "", "LANG": "", "TZ": ""}  # may be the same by chance
        assert not {name for name, value in held.items() if os.environ.get(name) == value and name not in usual}
        assert "PYTEST_CURRENT_TEST" not in held
    assert Path(f"/proc/{pid}/cwd").readlink() != Path.cwd()
    if os.geteuid() == 0:
        assert Path(f"/proc/{pid}").stat().st_uid != 0


def test_a_browser_that_dies_takes_its_pages_and_comes_back(world: World) -> None:
    world.place.pages.clear()
    world.place.pages.update({"/": html("<p>x</p>"), "/late": silent})

    async def scenario() -> tuple[Output, Output]:
        await world.call(world.url())
        held = asyncio.create_task(world.call(world.url("/late")))
        while not any(request.path == "/late" for request in world.place.requests):
            await asyncio.sleep(0.02)
        os.kill(chromium_pid(world), signal.SIGKILL)
        return await held, await world.call(world.url())

    lost, found = world.run(scenario())
    assert lost.is_error
    assert "try again" in text(lost)
    assert not found.is_error


@pytest.mark.soak
def test_a_page_in_a_hung_browser_is_loaded_in_another(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.place.pages.clear()
    world.place.pages.update({"/": html("<p>x</p>"), "/long": html(f"<p>Here: {PROSE}</p>")})

    async def scenario() -> tuple[Output, int]:
        await world.call(world.url())
        await nothing_open(world)
        long = asyncio.create_task(world.call(world.url("/long"), wait_ms=5_000))
        while not any(request.path == "/long" for request in world.place.requests):
            await asyncio.sleep(0.02)
        pid = chromium_pid(world)
        with monkeypatch.context() as patch:
            patch.setattr(browsers, "CLOSE", 0.0)  # nothing closes in that time
            await world.call(world.url())
            while chromium_pid_or_none(world) == pid:
                await asyncio.sleep(0.02)
        return await long, pid

    output, pid = world.run(scenario())
    assert "Here: " in text(output)
    assert chromium_pid(world) != pid


def test_a_browser_is_replaced_after_so_many_pages(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(browsers, "WORN_PAGES", 1)
    assert not world.read({"/": html("x")}).is_error
    world.run(nothing_open(world))
    assert left_behind() == []


def test_a_cancelled_call_leaves_no_page(world: World) -> None:
    world.place.pages.clear()
    world.place.pages.update({"/": html("<p>x</p>"), "/late": silent})
    world.place.requests.clear()

    async def scenario() -> None:
        held = asyncio.create_task(world.call(world.url("/late")))
        while not any(request.path == "/late" for request in world.place.requests):
            await asyncio.sleep(0.02)
        held.cancel()
        await asyncio.wait([held])
        await nothing_open(world)

    world.run(scenario())


def test_pages_that_never_come_leave_some_of_the_browser_to_others(world: World) -> None:
    world.place.pages.clear()
    world.place.pages.update({"/": html("<p>Here</p>"), "/late": silent})
    world.place.requests.clear()

    def late() -> int:
        return sum(request.path == "/late" for request in world.place.requests)

    async def scenario() -> None:
        eve = [asyncio.create_task(world.call(world.url("/late"), "eve")) for _ in range(browsers.PAGES)]
        while late() < browsers.SHARE:
            await asyncio.sleep(0.02)
        assert "Here" in text(await world.call(world.url("/"), "ada"))
        assert late() == browsers.SHARE
        for waiting in eve:
            waiting.cancel()
        await asyncio.wait(eve)
        await nothing_open(world)

    world.run(scenario())


async def nothing_open(world: World) -> None:
    browser = world.reader.browser
    assert browser is not None
    while browser._tasks or browser.proxy.connections:
        await asyncio.sleep(0.02)
    assert browser._current is None or browser._current.pages == 0
    assert browser._queue._free == browsers.PAGES


@pytest.mark.parametrize("count", [5, pytest.param(50, marks=SOAK)])
def test_many_calls_at_once_are_all_answered_and_leave_nothing(world: World, count: int) -> None:
    world.place.pages.clear()
    world.place.pages.update({"/": html(f"<p>Here: {PROSE}</p><script>document.title = 'ran'</script>")})
    most = 0

    async def watched() -> None:
        nonlocal most
        while True:
            current = world.reader.browser._current if world.reader.browser else None
            most = max(most, sum(current.chromium.memory().values()) if current else 0)
            await asyncio.sleep(0.2)

    async def scenario() -> list[Output]:
        watch = asyncio.create_task(watched())
        calls = [world.call(world.url(), f"caller {n % 5}", hold=59.0) for n in range(count)]
        outputs = await asyncio.gather(*calls)
        watch.cancel()
        await nothing_open(world)
        return outputs

    outputs = world.run(scenario())
    assert [output for output in outputs if output.is_error and "busy" not in text(output)] == []
    assert sum("Title: ran" in text(output) for output in outputs) >= min(
        10, count
    )  # as many as a slow machine reads in time
    assert most < browsers.MOST_MEMORY


def test_an_idle_browser_ends_and_another_comes_when_it_is_needed(world: World) -> None:
    browser = world.reader.browser
    assert browser is not None

    async def scenario() -> None:
        await world.call(world.url())
        while browser._tasks:
            await asyncio.sleep(0.02)
        browser._stop_if_idle()
        while left_behind():
            await asyncio.sleep(0.02)
        assert not (await world.call(world.url())).is_error

    world.place.pages.update({"/": html("<p>x</p>")})
    world.run(scenario())


@pytest.fixture
def folder() -> Iterator[Path]:
    """Yield a folder that the browser's user can enter too: pytest's own are private."""
    with tempfile.TemporaryDirectory(prefix="toolgate-test-") as name:
        Path(name).chmod(0o755)
        yield Path(name)


def test_read_docs_works_without_a_browser_that_does_not_start(world: World, folder: Path) -> None:
    world.place.pages.update({"/": html(f"<p>{PROSE}</p>")})

    told = folder / "told"
    told.touch()
    told.chmod(0o666)

    async def scenario() -> list[str]:
        async with another(world, script(folder, f"echo started >> {told}; exit 1")) as lent:
            return [text(await lent.call(world.url())) for _ in range(2)]

    for answer in world.run(scenario()):
        assert "fetched without a browser: scripts did not run; the browser did not start: " in answer
        assert PROSE.strip() in answer
    assert told.read_text() == "started\n"  # not at each call


def test_read_docs_works_without_a_driver_that_ends_at_once(
    world: World, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If a library of its own is missing, it ends without output."""
    world.place.pages.update({"/": html(f"<p>{PROSE}</p>")})
    monkeypatch.setenv("PLAYWRIGHT_NODEJS_PATH", script(folder, "exit 1"))

    async def scenario() -> str:
        async with another(world, world.program) as lent:
            return text(await lent.call(world.url()))

    answer = world.run(scenario())
    assert "the browser did not start: Connection closed" in answer and PROSE.strip() in answer


@contextlib.asynccontextmanager
async def another(world: World, program: str) -> AsyncIterator[World]:
    """Yield the same world with a browser of its own."""

    async def resolve(host: str, port: int) -> Sequence[str]:
        return [PUBLIC]

    reader = LocalPageReader(Web([PUBLIC], resolve=resolve), program)
    try:
        yield World(world.runner, reader, world.place, world.victim, world.names, program)
    finally:
        await reader.close()


def script(folder: Path, body: str) -> str:
    path = folder / "chromium"
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)
    return str(path)


def test_a_browser_without_its_own_sandbox_starts_and_says_so(world: World, folder: Path) -> None:
    place = script(
        folder,
        f"""case "$*" in
        *--no-sandbox*) exec {world.program} "$@" ;;
        *) echo '[1:1:FATAL:zygote_host_impl_linux.cc] No usable sandbox!' >&2; exit 1
        esac""",
    )
    world.place.pages.update({"/": html(f"<p>{PROSE}</p>")})

    async def scenario() -> str:
        async with another(world, place) as lent:
            return text(await lent.call(world.url()))

    assert "(the browser runs without its own sandbox)" in world.run(scenario())


def test_https_is_read_through_the_proxy_and_its_certificate_is_checked(world: World, folder: Path) -> None:
    server, _ = certificate(folder, "shop.test")
    key = x509.load_pem_x509_certificate((folder / "server.pem").read_bytes()).public_key()
    der = key.public_bytes(serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo)
    pin = base64.b64encode(hashlib.sha256(der).digest()).decode()
    trusting = script(folder, f'exec {world.program} "$@" --ignore-certificate-errors-spki-list={pin}')

    async def scenario() -> tuple[str, Output, Output]:
        async with site({"/": html(f"<p>Safe: {PROSE}</p>")}, tls=server) as shop:
            url = shop.url(host="shop.test")
            async with another(world, trusting) as lent:
                good = await lent.call(url)
            world.names["shop.test"] = [[PUBLIC]]
            world.looked_up.clear()
            return url, good, await world.call(url)

    url, good, bad = world.run(scenario())
    assert "Safe: " in text(good)
    assert good.structured is not None
    assert (good.structured.rendered, good.structured.url) == (True, url)
    assert bad.is_error
    assert text(bad) == f"could not fetch {url}: TLS: cert authority invalid"
    assert {*world.looked_up} == {"shop.test"}  # Chromium resolves nothing itself


@pytest.mark.soak
def test_sockets_do_not_pile_up(world: World) -> None:
    def held() -> int:
        return len(os.listdir("/proc/self/fd"))

    world.read({"/": html("<p>x</p>")})
    world.run(nothing_open(world))
    before = held()
    for _ in range(3):
        world.read({"/": html("<p>x</p>")})
    world.run(nothing_open(world))
    assert held() <= before + 1
    assert socket.gethostname()
