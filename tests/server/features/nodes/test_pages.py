"""Pages and pictures are read at a node as they are read in the server's process."""

import asyncio
import io
import signal
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from PIL import Image as pillow

from tests.clients.raw_client import Server, children, eventually
from tests.clients.raw_http_client import site as http_server
from tests.clients.raw_http_client import spoken
from tests.server.features.nodes.nodes import NodeProcess, ReaderOfNode, fake_principal, reading, running_node
from tests.tools.builtin import test_docs
from tests.tools.engines import answers as shapes
from tests.tools.fake_web_site import Answer, Request, Site, never, site
from tests.tools.reading.browser.test_browser import pdf
from tests.tools.shell_commands import alive
from tests.tools.tool_calls import call, text
from toolgate.server.cli import main
from toolgate.server.features.nodes.messages import MAX_DATA
from toolgate.tools.api.content import Image
from toolgate.tools.api.context.services import Settings
from toolgate.tools.api.outbound.errors import AddressRefusedError, PageTimeoutError
from toolgate.tools.api.outbound.fetch import MAX_BODY, Web
from toolgate.tools.builtin.docs import read_docs
from toolgate.tools.builtin.images import read_image
from toolgate.tools.reading.search.engines import choose_engines
from toolgate.tools.reading.search.search import Search
from toolgate.tools.reading.search.tool import web_search

closing = test_docs.closing  # the fixture: its tests share an event loop

BOUND = 40.0  # seconds for any test
LOOPBACK = ("--sandbox", "none", "--allow-private", "127.0.0.1")
SHARED = (  # tests of ReadDocs that pass through a node
    test_docs.test_markdown_is_the_main_content_with_title_url_and_absolute_links,
    test_docs.test_html_is_the_page_as_it_is,
    test_docs.test_a_fault_is_an_error_with_its_status_and_what_the_page_says,
    test_docs.test_the_url_is_the_one_redirects_led_to,
    test_docs.test_a_long_page_is_cut_under_a_hundred_thousand_characters,
    test_docs.test_a_page_that_takes_too_long_is_given_up_within_the_hold,
)


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcess]:
    """A node without a browser."""
    with running_node(tmp_path_factory.mktemp("plain"), *LOOPBACK, "--browser", "none") as node:
        yield node


@pytest.fixture(scope="module")
def browsing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcess]:
    """A node with Chromium."""
    with running_node(tmp_path_factory.mktemp("browsing"), *LOOPBACK) as node:
        yield node


def run(work: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(work, BOUND))


@pytest.mark.parametrize("test", [pytest.param(test, id=test.__name__.removeprefix("test_")) for test in SHARED])
def test_through_a_node(test: Callable[[], None], plain: NodeProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(test_docs, "Reader", lambda _: ReaderOfNode(plain))
    test()


def test_scripts_run_in_the_browser_of_the_node_and_pdfs_become_text(browsing: NodeProcess) -> None:
    page = b"<title>T</title><p id=x>before<script>document.getElementById('x').textContent = `got ${6 * 7}`</script>"
    pages: dict[str, Answer] = {"/": page, "/pdf": (200, {"content-type": "application/pdf"}, pdf(["The first page"]))}

    async def body() -> None:
        async with site(pages) as place, reading(browsing) as reader:
            output = await call(read_docs, {"url": place.url("/")}, reader=reader)
            assert text(output) == f"Title: T\nURL: {place.url('/')}\n\ngot 42"
            assert output.structured["rendered"] is True
            assert "The first page" in text(await call(read_docs, {"url": place.url("/pdf")}, reader=reader))
            refused = await call(read_docs, {"url": "http://10.0.0.1/"}, reader=reader)
            assert refused.is_error and text(refused).startswith("refused: 10.0.0.1 is private; ")

    run(body())


def test_a_cancelled_load_ends_the_page_in_the_browser_of_the_node(browsing: NodeProcess) -> None:
    begun, ended = asyncio.Event(), asyncio.Event()

    async def silent(request: Request) -> None:
        begun.set()
        assert request.reader is not None
        await request.reader.read()  # until Chromium closes
        ended.set()

    async def body() -> None:
        async with site({"/": silent}) as place, reading(browsing) as reader:
            load = asyncio.ensure_future(call(read_docs, {"url": place.url()}, reader=reader))
            await begun.wait()
            load.cancel()
            await asyncio.wait([load])
            assert load.cancelled()
            await asyncio.wait_for(ended.wait(), 5)

    run(body())


def test_a_picture_of_the_workspace_at_the_node_is_scaled_there(plain: NodeProcess) -> None:
    async def body() -> None:
        principal, data = fake_principal(), io.BytesIO()
        pillow.linear_gradient("L").resize((600, 400)).convert("RGB").save(data, "PNG")
        async with reading(plain) as reader:
            mine = reader.remote.get_or_open(principal)
            await mine.list()  # a call before it tells the gateway where the workspace is
            path = str(await mine.write_file(f"{mine.root}/a.png", data.getvalue(), suffix=".png"))
            lent: dict[str, Any] = {
                "reader": reader,
                "workspace": mine,
                "principal": principal,
                "settings": Settings(any_file=False, image_pixels=300),
            }
            output = await call(read_image, {"file_path": path}, **lent)
            assert text(output).startswith(f"{path}: png, 300 × 200, ")
            assert isinstance(output.content[0], Image)
            for name, told in (
                ("/etc/passwd", "is outside the workspace"),
                (f"{mine.root}/none.png", "does not exist"),
            ):
                assert told in text(await call(read_image, {"file_path": name}, **lent))

    run(body())


def test_plugins_fetch_at_the_node_with_its_policy_and_its_limits(plain: NodeProcess) -> None:
    large = b"x" * (MAX_DATA + 5)

    async def body() -> None:
        pages: dict[str, Answer] = {"/": (201, {"x-y": "z"}, bytes(range(256))), "/large": (200, {}, large)}
        async with site(pages) as place, reading(plain) as reader:
            web = reader.get_fetcher("local")
            page = await web.fetch(place.url("/"), headers={"authorization": "for it"}, lane="own")
            assert (page.status, page.body, page.headers["x-y"]) == (201, bytes(range(256)), "z")
            assert place.requests[-1].headers["authorization"] == "for it"
            page = await web.fetch(place.url("/large"), limit=2 * MAX_DATA)
            assert (len(page.body), page.truncated) == (MAX_DATA, True)
            assert len((await web.fetch(place.url("/large"))).body) == MAX_BODY
            with pytest.raises(AddressRefusedError, match=r"10\.0\.0\.1 is private"):
                await web.fetch("http://10.0.0.1/")
            place.pages["/never"] = never
            with pytest.raises(PageTimeoutError, match=r"did not come in full within 0\.2 s"):
                await web.fetch(place.url("/never"), timeout=0.2)

    run(body())


def test_a_search_stays_at_the_gateway_and_its_pages_are_read_at_the_node(plain: NodeProcess) -> None:
    async def body() -> None:
        async with site({"/mojeek": shapes.with_results("mojeek")}) as place, reading(plain) as reader:
            engines = choose_engines([f"mojeek={place.url('/mojeek')}"])
            web = Web(["127.0.0.1"])
            search = Search(web, reader.create_result_reader, [msgspec.structs.replace(engines[0], seconds=20.0)])
            output = await call(web_search, {"query": "frobs"}, search=search, principal=fake_principal())
            await web.close()
            assert [(row["name"], row["status"], row["count"]) for row in output.structured["engines"]] == [
                ("mojeek", "ok", 2)
            ]

    run(body())


def test_a_gateway_starts_no_process_for_pages_and_pictures(browsing: NodeProcess, tmp_path: Path) -> None:
    pages = {"/": b"<title>T</title><p>Here", "/mojeek": shapes.with_results("mojeek")}
    data = io.BytesIO()
    pillow.new("RGB", (9, 9)).save(data, "PNG")

    async def body(gateway: Server, place: Site) -> None:
        def use() -> None:
            assert "Here" in gateway.text("ReadDocs", {"url": place.url("/")})
            assert "mojeek ok 2" in gateway.text("WebSearch", {"query": "frobs"})
            gateway.text("Bash", {"command": "true"})
            picture = browsing.state / "workspaces" / "local" / "a.png"
            picture.write_bytes(data.getvalue())
            assert "9 × 9" in gateway.text("ReadImage", {"file_path": str(picture)})

        assert await asyncio.to_thread(use) is None
        assert children(gateway.process.pid) == set()
        assert children(browsing.process.pid) != set()

    async def main() -> None:
        async with site(pages) as place:
            words = ("--node", f"unix:{browsing.socket}", "--engines", f"mojeek={place.url('/mojeek')}")
            with (
                http_server(tmp_path, *words, "--allow-private", "127.0.0.1", workspace=False) as server,
                spoken(server, "http") as client,
            ):
                await body(client, place)

    run(main())


def test_what_concerns_a_nodes_pages_alone_is_refused_beside_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert (
        main.run(["--state", str(tmp_path), "-t", "--auth", "none", "--node", "unix:/nowhere", "--browser", "none"])
        == 2
    )
    assert "--browser is the node's: give it to toolgate node, not beside --node" in capsys.readouterr().err


def test_a_page_under_way_gets_its_grace_when_the_node_is_stopped(tmp_path: Path) -> None:
    async def body(node: NodeProcess) -> None:
        asked, go = asyncio.Event(), asyncio.Event()

        async def late(request: Request) -> None:
            asked.set()
            await go.wait()
            await request.send(200, {"content-type": "text/plain", "connection": "close"}, b"words")

        async with site({"/": late}) as place, reading(node) as reader:
            page = asyncio.ensure_future(call(read_docs, {"url": place.url()}, reader=reader))
            await asked.wait()
            node.process.send_signal(signal.SIGTERM)
            refused = ""
            while not refused:  # until the signal has arrived
                output = await call(read_docs, {"url": "http://10.0.0.1/"}, reader=reader)
                refused = text(output) if "is private" not in text(output) else ""
            assert refused == "the node is shutting down: nothing more is started"
            go.set()
            assert "words" in text(await page)
            assert await asyncio.to_thread(node.process.wait, 5) == 0

    with running_node(tmp_path, *LOOPBACK, "--browser", "none", "--grace", "20") as node:
        run(body(node))


@pytest.mark.soak
def test_a_node_that_is_stopped_ends_its_browser_and_its_workers(tmp_path: Path) -> None:
    with running_node(tmp_path, *LOOPBACK, "--grace", "0.5") as node:
        end_while_it_reads(node, signal.SIGTERM)


@pytest.mark.soak
def test_a_node_that_is_killed_leaves_no_browser_and_no_worker(browsing: NodeProcess) -> None:
    end_while_it_reads(browsing, signal.SIGKILL)


def end_while_it_reads(node: NodeProcess, end: signal.Signals) -> None:
    async def body() -> None:
        async with site({"/": b"<p>Here", "/never": never}) as place, reading(node) as reader:
            assert "Here" in text(await call(read_docs, {"url": place.url("/")}, reader=reader))
            asked = asyncio.ensure_future(call(read_docs, {"url": place.url("/never")}, reader=reader))
            while not any(request.path == "/never" for request in place.requests):
                await asyncio.sleep(0.02)
            started = children(node.process.pid)
            assert len(started) > 3  # a worker, the browser's driver, its keeper, and Chromium
            node.process.send_signal(end)
            assert "the node at" in text(await asked)
            await asyncio.to_thread(node.process.wait, 5)
            assert await asyncio.to_thread(eventually, lambda: not any(map(alive, started)), 1.0)

    run(body())
