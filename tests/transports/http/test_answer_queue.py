"""Small answers of one turn are sent together, and none waits for work that takes long."""

import asyncio
import time
from typing import Any

import uvicorn
from uvicorn.server import ServerState

from toolgate.server.budget import Budget
from toolgate.transports.http import answer_queue
from toolgate.transports.http.answer_queue import AnswerQueue, HeadJoiningTransport
from toolgate.transports.http.connections import Connections
from toolgate.transports.http.protocol import HttpProtocol


class RecordedTransport:
    """Stands in for a socket's transport: records what is written, and in which order."""

    def __init__(self, writes: list[Any], name: str) -> None:
        self._writes = writes
        self._name = name
        self._is_closed = False

    def write(self, data: bytes) -> None:
        self._writes.append((self._name, data))

    def writelines(self, parts: Any) -> None:
        self.write(b"".join(parts))

    def close(self) -> None:
        self._writes.append((self._name, "closed"))
        self._is_closed = True

    def is_closing(self) -> bool:
        return self._is_closed

    def get_extra_info(self, _name: str, default: Any = None) -> Any:
        return default

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...


def connected(app: Any, queue: AnswerQueue, writes: list[Any]) -> HttpProtocol:
    """Return the protocol of a new connection, which `app` serves."""
    config = uvicorn.Config(app, ws="none", lifespan="off", log_config=None, proxy_headers=False)
    config.load()
    limits: Any = {"connections": Connections(), "answers": Budget(1, 1), "probes": ()}
    protocol = HttpProtocol(config, ServerState(), {}, asyncio.get_running_loop(), queue=queue, **limits)
    transport: Any = RecordedTransport(writes, "ada")
    protocol.connection_made(transport)
    return protocol


def answer(transport: HeadJoiningTransport, body: bytes) -> None:
    transport.is_head_next = True
    transport.write(b"head ")
    transport.write(body)


async def two_clients() -> tuple[AnswerQueue, HeadJoiningTransport, HeadJoiningTransport, list[Any]]:
    writes: list[Any] = []
    queue = AnswerQueue(asyncio.get_running_loop())
    ada, ben = (HeadJoiningTransport(RecordedTransport(writes, name), queue) for name in ("ada", "ben"))
    return queue, ada, ben, writes


def test_a_head_without_a_body_is_not_written_to_a_closed_connection() -> None:
    async def main() -> None:
        _, ada, _, writes = await two_clients()
        ada.is_head_next = True
        ada.write(b"head ")
        ada._transport.close()
        ada.flush()
        assert writes == [("ada", "closed")]

    asyncio.run(main())


def test_the_answer_of_a_lone_client_is_sent_at_once() -> None:
    async def main() -> None:
        queue, ada, _, writes = await two_clients()
        queue.unstarted = 1
        queue.start_request(False)
        answer(ada, b"body")
        assert writes == [("ada", b"head body")]

    asyncio.run(main())


def test_answers_of_requests_that_came_together_are_sent_together() -> None:
    async def main() -> None:
        queue, ada, ben, writes = await two_clients()
        queue.unstarted = 2
        queue.start_request(False)
        answer(ada, b"1")
        assert writes == []
        queue.start_request(False)
        answer(ben, b"2")
        assert writes == [("ada", b"head 1"), ("ben", b"head 2")]

    asyncio.run(main())


def test_an_answer_is_sent_at_the_end_of_the_turn_though_another_request_takes_long() -> None:
    async def main() -> None:
        queue, ada, _, writes = await two_clients()
        queue.unstarted = 2
        queue.start_request(False)
        answer(ada, b"1")
        await asyncio.sleep(0)
        assert writes == [("ada", b"head 1")]

    asyncio.run(main())


def test_an_answer_that_has_waited_too_long_is_sent_before_the_next_work() -> None:
    async def main() -> None:
        queue, ada, _, writes = await two_clients()
        queue.unstarted = 3
        queue.start_request(False)
        answer(ada, b"1")
        queue.start_request(False)
        assert writes == []
        time.sleep(2 * answer_queue.MAX_WAIT)  # work that holds the loop
        queue.start_request(False)
        assert writes == [("ada", b"head 1")]

    asyncio.run(main())


def test_a_connection_sends_its_answers_in_order_and_before_it_closes() -> None:
    async def main() -> None:
        queue, ada, _, writes = await two_clients()
        queue.unstarted = 9
        answer(ada, b"1")
        answer(ada, b"2")
        answer(ada, b"3")
        ada.close()
        await asyncio.sleep(0)
        assert writes == [("ada", b"head 1"), ("ada", b"head 2"), ("ada", b"head 3"), ("ada", "closed")]

    asyncio.run(main())


def test_who_was_answered_longest_ago_is_served_first() -> None:
    async def main() -> None:
        begun: list[str] = []

        def begin(name: str, _app: None) -> None:
            begun.append(name)

        queue = AnswerQueue(asyncio.get_running_loop())
        for name, answered in (("ada", 3.0), ("ben", 1.0), ("cid", 2.0), ("dan", 1.0)):
            queue.begin(answered, begin, name, None)
        assert begun == []
        await asyncio.sleep(0)
        assert begun == ["ben", "dan", "cid", "ada"]
        queue.begin(9.0, begin, "eve", None)
        await asyncio.sleep(0)
        assert begun[4:] == ["eve"]

    asyncio.run(main())


def test_a_large_answer_does_not_wait() -> None:
    async def main() -> None:
        queue, ada, _, writes = await two_clients()
        queue.unstarted = 2
        answer(ada, b"x" * (answer_queue.SMALL + 1))
        assert [name for name, _ in writes] == ["ada"]

    asyncio.run(main())


def test_an_answer_to_a_client_that_left_is_dropped() -> None:
    async def main() -> None:
        writes: list[Any] = []
        queue = AnswerQueue(asyncio.get_running_loop())
        socket = RecordedTransport(writes, "ada")
        ada = HeadJoiningTransport(socket, queue)
        queue.unstarted = 2
        answer(ada, b"1")
        socket.close()
        await asyncio.sleep(0)
        assert writes == [("ada", "closed")]

    asyncio.run(main())


def test_a_request_that_can_not_be_parsed_leaves_nothing_to_wait_for() -> None:
    async def app(scope: Any, _receive: Any, _send: Any) -> None:
        scope["toolgate.starts"](False)

    async def main() -> None:
        queue = AnswerQueue(asyncio.get_running_loop())
        for url, waiting in ((b"http://[", 0), (b"/", 1)):
            protocol = connected(app, queue, [])
            protocol.data_received(b"GET %b HTTP/1.1\r\nhost: x\r\n\r\n" % url)
            assert queue.unstarted == waiting
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            assert queue.unstarted == 0
            protocol.connection_lost(None)

    asyncio.run(main())


def test_what_waits_is_sent_before_the_work_on_a_large_request() -> None:
    async def main() -> None:
        queue, ada, _, writes = await two_clients()
        queue.unstarted = 3
        queue.start_request(False)
        answer(ada, b"1")
        queue.start_request(True)
        assert writes == [("ada", b"head 1")]

    asyncio.run(main())


def test_pipelined_requests_of_a_connection_that_ends_leave_nothing_to_wait_for() -> None:
    release: list[asyncio.Event] = []

    async def app(scope: Any, _receive: Any, _send: Any) -> None:
        scope["toolgate.starts"](False)
        await release[0].wait()

    async def main() -> None:
        release.append(asyncio.Event())
        queue = AnswerQueue(asyncio.get_running_loop())
        protocol = connected(app, queue, [])
        protocol.data_received(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n" * 20)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        protocol.connection_lost(None)
        release[0].set()
        await asyncio.sleep(0)
        assert queue.unstarted == 0

    asyncio.run(main())


def test_a_client_that_closes_its_half_of_the_connection_gets_its_answer() -> None:
    async def main() -> None:
        writes: list[Any] = []
        queue = AnswerQueue(asyncio.get_running_loop())
        protocol = connected(lambda *_: None, queue, writes)
        queue.unstarted = 2
        joining: Any = protocol.transport
        answer(joining, b"1")
        protocol.eof_received()
        assert writes == [("ada", b"head 1")]
        protocol.connection_lost(None)

    asyncio.run(main())


def test_what_is_written_after_the_connection_was_lost_is_dropped() -> None:
    """uvloop raises then. A stream with another request behind it learns of the end by itself."""

    async def main() -> None:
        writes: list[Any] = []
        inner: Any = RecordedTransport(writes, "ada")
        transport = HeadJoiningTransport(inner, AnswerQueue(asyncio.get_running_loop()))
        inner.close()
        transport.write(b"the end of a stream")
        assert writes == [("ada", "closed")]

    asyncio.run(main())
