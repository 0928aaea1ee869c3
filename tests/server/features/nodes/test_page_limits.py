"""What one person, one gateway and one node may ask of each other about pages is bounded."""

import asyncio
from collections.abc import Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.server.features.nodes.nodes import NodeProcess, fake_principal, gateway, reading, running_node
from tests.tools.fake_web_site import never, site
from tests.tools.tool_calls import call, text
from toolgate.server.base.principals.principal import LOCAL_NAME
from toolgate.server.base.rpc import errors, frames
from toolgate.server.features.nodes import messages
from toolgate.server.features.nodes.gateway.remote_methods import request
from toolgate.server.features.nodes.node.gateway_session import MAX_UNTAKEN, GatewaySession
from toolgate.server.features.nodes.node.moves import WorkspaceMoves
from toolgate.server.features.nodes.node.node import Node
from toolgate.server.features.nodes.pages.methods import JobOutcome, PageMethods
from toolgate.server.features.nodes.pages.node_pages import NodePages
from toolgate.server.features.nodes.pages.remote_page_reader import RemotePageReader
from toolgate.tools.api.errors import ToolError
from toolgate.tools.api.outbound.fetch import Web
from toolgate.tools.builtin.docs import read_docs
from toolgate.tools.reading.pages.local_page_reader import MAX_WAITING, VISITS_SHARE
from toolgate.tools.reading.pages.page_reader import PageDocument, PageRequest, PictureRequest
from toolgate.tools.reading.search.engine import EngineQuery
from toolgate.tools.reading.search.engines import choose_engines
from toolgate.tools.reading.search.html_engine import ReadResults, ReadResultsJob
from toolgate.tools.reading.search.search import Search
from toolgate.tools.reading.workers.pictures import FittedPicture
from toolgate.tools.reading.workers.pool import WorkerLimitError
from toolgate.tools.workspace.workspace import WorkspaceUnreachableError

BOUND = 40.0  # seconds for any test


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcess]:
    """A node without a browser."""
    options = ("--sandbox", "none", "--allow-private", "127.0.0.1", "--browser", "none")
    with running_node(tmp_path_factory.mktemp("plain"), *options) as node:
        yield node


def run(work: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(work, BOUND))


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
            load = await request(reader.remote.links[0], LOCAL_NAME, "node.measure_load")
            assert (load.pages_running, load.pages_waiting) == (VISITS_SHARE, MAX_WAITING)
            ada = await call(read_docs, {"url": place.url("/")}, reader=reader, principal=fake_principal())
            assert "Here" in text(ada)
            for waiting in calls:
                waiting.cancel()
            await asyncio.wait(calls)

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


class AwayNode:
    """Stands in for a node that can't be reached."""

    async def read_results(self, *_: Any) -> JobOutcome:
        raise WorkspaceUnreachableError("the node at unix:/n can't be reached:\nnothing was done")


def test_a_node_that_is_away_does_not_count_against_an_engine() -> None:
    async def body() -> None:
        away: PageMethods = AwayNode()  # type: ignore[assignment]  # one of its methods
        (engine,) = choose_engines(["mojeek"])
        web = Web()
        search = Search(web, RemotePageReader(lambda _: away).create_result_reader, [engine])
        for number in range(5):
            (outcome,) = await search.ask("ada", f"query {number}", 5.0)
            told = "the node at unix:/n can't be reached: nothing was done"
            assert (outcome.status, outcome.reason, outcome.is_engine_fault) == ("error", told, False)
        assert search.health["mojeek"].state == "closed"
        refused = answers(JobOutcome(is_begun=True, refusal="the ddgs library no longer knows mojeek"))
        search = Search(web, refused.create_result_reader, [engine])
        (outcome,) = await search.ask("ada", "query", 5.0)
        assert (outcome.reason, outcome.is_engine_fault) == ("the ddgs library no longer knows mojeek", True)
        await web.close()

    run(body())


class EndlessPages:
    """Stands in for a reader whose documents have `size` characters."""

    def __init__(self, size: int) -> None:
        self._document = PageDocument("http://x/", "", 200, "text", rendered=False, truncated=False, text="x" * size)

    async def read(self, _: PageRequest) -> PageDocument:
        return self._document


class FakeSink:
    """Stands in for a connection that takes nothing."""

    def __init__(self) -> None:
        self.answers: list[messages.NodeAnswer] = []

    def is_closing(self) -> bool:
        return False

    def write(self, data: bytes) -> None:
        answer = messages.FROM_NODE.decode(data[frames.LENGTH.size :])
        assert isinstance(answer, messages.NodeAnswer)
        self.answers.append(messages.NodeAnswer(answer.number, error=answer.error))


def test_answers_that_a_gateway_does_not_take_are_bounded(tmp_path: Path) -> None:
    size = MAX_UNTAKEN // 4
    arguments = frames.encode_raw({"url": "", "format": "text", "wait": 0, "offset": 0, "hold": 5, "seconds": 5})

    async def body() -> None:
        node, sink = Node(), FakeSink()
        node.moves = WorkspaceMoves(tmp_path, None, is_shared=False)  # type: ignore[arg-type]  # nobody moves
        node.pages = NodePages(EndlessPages(size))  # type: ignore[arg-type]  # one of its methods
        session = GatewaySession(node, lambda: None)
        session.attach(sink)  # type: ignore[arg-type]  # what is used of it

        async def ask(first: int, last: int) -> list[bool]:
            """Return whether each request has a result."""
            for number in range(first, last + 1):
                session.take(messages.NodeRequest(number, "local", "pages.read_page", arguments))
                await asyncio.gather(*session.list_page_tasks())
            return [answer.error is None for answer in sink.answers[first - 1 :]]

        assert await ask(1, 5) == [True, True, True, False, False]  # four and their frames are more than MAX_UNTAKEN
        assert sink.answers[4].error == errors.ErrorData("ToolError", "too many answers wait to be taken: call again")
        session.take(messages.Acknowledgement([1, 2, 4, 5]))
        assert await ask(6, 6) == [True]

    run(body())
