"""Pages and pictures are read at a node as they are read in the server's process."""

import asyncio
import contextlib
import io
import signal
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from PIL import Image as pillow

from tests.clients.raw_client import Server, children, eventually
from tests.clients.raw_http_client import site as http_server
from tests.clients.raw_http_client import spoken
from tests.server.node.nodes import (
    NodeProcess,
    fake_placement,
    fake_principal,
    gateway,
    list_nobody,
    running_node,
)
from tests.tools.browser.test_browser import pdf
from tests.tools.builtin import test_docs
from tests.tools.engines import answers as shapes
from tests.tools.fake_web_site import Answer, Request, Site, never, site
from tests.tools.shell_commands import alive
from tests.tools.tool_calls import call, text
from toolgate.server.cli import main
from toolgate.server.node.messages import MAX_DATA
from toolgate.server.node.pages.methods import JobOutcome, PageMethods
from toolgate.server.node.pages.remote_page_reader import RemotePageReader
from toolgate.server.node.remote_workspaces import RemoteWorkspaces
from toolgate.server.watch import FileChanges
from toolgate.tools.api.content import Image
from toolgate.tools.api.errors import ToolError
from toolgate.tools.api.services import Settings
from toolgate.tools.builtin.docs import read_docs
from toolgate.tools.builtin.images import read_image
from toolgate.tools.pages.local_page_reader import MAX_WAITING, VISITS_SHARE
from toolgate.tools.pages.page_reader import PageDocument, PageRequest, PictureRequest
from toolgate.tools.search import Search, choose_engines, web_search
from toolgate.tools.search.engine import EngineQuery
from toolgate.tools.search.html_engine import ReadResults, ReadResultsJob
from toolgate.tools.web.fetch import MAX_BODY, Web
from toolgate.tools.web.page import AddressRefusedError, PageTimeoutError
from toolgate.tools.workers.pictures import FittedPicture
from toolgate.tools.workers.pool import WorkerLimitError

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


class ReaderOfNode(RemotePageReader):
    """The reader of a gateway, which ends with it."""

    def __init__(self, node: NodeProcess) -> None:
        self.remote = RemoteWorkspaces(fake_placement(node.address), FileChanges(), lambda _, run: None, list_nobody)
        super().__init__(lambda name: self.remote.get_pages(name if name.startswith("u-") else "local"))

    async def close(self) -> None:
        await self.remote.close()


@contextlib.asynccontextmanager
async def reading(node: NodeProcess) -> AsyncIterator[ReaderOfNode]:
    reader = ReaderOfNode(node)
    try:
        yield reader
    finally:
        await reader.close()


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
    monkeypatch.setattr(test_docs, "page_reader", lambda _: ReaderOfNode(plain))
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


def test_a_principals_pages_that_wait_at_the_node_are_bounded_and_delay_no_other(plain: NodeProcess) -> None:
    async def body() -> None:
        async with site({"/": b"<p>Here", "/never": never}) as place, reading(plain) as reader:
            eve = fake_principal()
            many = VISITS_SHARE + MAX_WAITING + 1
            calls = [
                asyncio.ensure_future(call(read_docs, {"url": place.url("/never")}, reader=reader, principal=eve))
                for _ in range(many)
            ]
            done, _ = await asyncio.wait(calls, return_when=asyncio.FIRST_COMPLETED)
            assert [text(each.result()) for each in done] == [
                f"the server is busy: {MAX_WAITING} of your pages are waiting; send fewer at once"
            ]
            ada = await call(read_docs, {"url": place.url("/")}, reader=reader, principal=fake_principal())
            assert "Here" in text(ada)
            for waiting in calls:
                waiting.cancel()
            await asyncio.wait(calls)

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


def test_what_a_gateway_may_ask_for_is_cut_to_the_nodes_limits(plain: NodeProcess) -> None:
    async def body() -> None:
        async with site({"/": b"<p>Here"}) as place, gateway(plain) as remote:
            node = remote.get_pages("local")
            document = await node.read_page(place.url("/"), "text", 1e300, -5, 1e300, 1e300)
            assert document.text == "Here"
            with pytest.raises(ToolError, match="took longer than"):
                await node.read_page(place.url("/"), "text", 0.0, 0, 5.0, -5.0)
            page = await node.fetch_page(place.url("/"), "GET", {}, b"", -5, 10**9, "lane", 1e300)
            assert (page.body, page.truncated) == (b"", True)
            for lane in range(100):
                page = await node.fetch_page(place.url("/"), "GET", {}, b"", 10**12, -1, f"lane {lane}", 5.0)
                assert page.body == b"<p>Here"
            with pytest.raises(ToolError, match="did not come in full"):
                await node.fetch_page(place.url("/"), "GET", {}, b"", 100, 3, "", -1.0)
            with pytest.raises(ToolError, match="the node knows no search engine nonsense"):
                await node.read_results(ReadResultsJob("nonsense", "", b""), 5.0)
            with pytest.raises(ToolError, match="outside the workspace"):
                await node.fit_picture("/etc/passwd", -5, -5, 5.0, anywhere=False)
            assert plain.process.poll() is None

    run(body())


class FakeNode:
    """Stands in for a node that answers with `answer`, whatever it is asked."""

    def __init__(self, answer: Any) -> None:
        self.answer = answer

    async def read_page(self, *_: Any, **__: Any) -> Any:
        return self.answer

    fit_picture = read_results = read_page


def answers(answer: Any) -> RemotePageReader:
    node: PageMethods = FakeNode(answer)  # type: ignore[assignment]  # three of its methods
    return RemotePageReader(lambda _: node)


def test_an_answer_that_is_larger_than_it_may_be_is_refused() -> None:
    async def body() -> None:
        page = PageDocument("http://x/", "", 200, "text", rendered=False, truncated=False, text="x" * 100_000)
        with pytest.raises(ToolError, match="longer than a page may be"):
            await answers(page).read(PageRequest.begin("me", "http://x/", "text", 0.0, 0, 5.0))
        picture, nothing = FittedPicture(b"x" * 11, "png", 1, 1, is_scaled=False, note=""), object()
        with pytest.raises(ToolError, match="larger than a picture may be"):
            await answers(picture).fit_picture(PictureRequest("me", "/a.png", 10, 10, False, 5.0), nothing)  # type: ignore[arg-type]

    run(body())


@pytest.mark.parametrize("is_begun", [True, False])
def test_a_search_job_whose_turn_did_not_come_is_not_the_engines_fault(is_begun: bool) -> None:
    async def body() -> None:
        query = EngineQuery(choose_engines(["mojeek"])[0], "q", "me", asyncio.get_running_loop().time() + 1)
        reader = answers(JobOutcome(is_begun)).create_result_reader(query.engine)
        with pytest.raises(TimeoutError):
            await reader.read(query, ReadResultsJob("mojeek", "q", b""), ReadResults)
        assert query.is_queued is not is_begun
        reader = answers(JobOutcome(is_begun=True, exceeded="took more than 5 s")).create_result_reader(query.engine)
        with pytest.raises(WorkerLimitError, match="took more than 5 s"):
            await reader.read(query, ReadResultsJob("mojeek", "q", b""), ReadResults)

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


@pytest.mark.soak
def test_a_node_that_is_stopped_ends_its_browser_and_its_workers(tmp_path: Path) -> None:
    with running_node(tmp_path, *LOOPBACK, "--grace", "0.5") as node:
        end_while_it_reads(node, signal.SIGTERM)


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
