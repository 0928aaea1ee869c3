"""The proxy of sandboxed commands, behind a socket that was made inside the sandbox."""

import asyncio
import contextlib
import errno
import json
import os
import resource
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any

import pytest
import uvloop

from tests.clients.raw_client import PATIENCE
from tests.servers.reserved_port import kept_port
from tests.tools.fake_web_site import Request, gone, site
from toolgate.tools.api.concurrency.rate_limiter import BURST, DEBT, MIN_CHARGE, ByteRateLimiter
from toolgate.tools.api.outbound.address_policy import AddressPolicy
from toolgate.tools.workspace.sandbox.egress import sandbox_proxy as outlets
from toolgate.tools.workspace.sandbox.egress.http import ProxyConnection
from toolgate.tools.workspace.sandbox.egress.sandbox_proxy import EVENT, SandboxProxy
from toolgate.tools.workspace.sandbox.egress.shared_limits import GUARANTEED, MAX_EACH, RATE, SharedProxyLimits

HERE = AddressPolicy.parse(["127.0.0.1"])
NOTHING = AddressPolicy()
LOOPS = [
    pytest.param(asyncio.new_event_loop, marks=pytest.mark.soak),
    uvloop.new_event_loop,
]  # HTTP is served by uvloop


def run(work: Awaitable[Any], loop: Callable[[], asyncio.AbstractEventLoop] = asyncio.new_event_loop) -> Any:
    async def bounded() -> Any:
        async with asyncio.timeout(10 * PATIENCE):
            return await work

    with asyncio.Runner(loop_factory=loop) as runner:
        return runner.run(bounded())


def listener(backlog: int = 2048) -> socket.socket:
    taken = socket.create_server(("127.0.0.1", 0), backlog=backlog)
    taken.setblocking(False)
    return taken


@contextlib.asynccontextmanager
async def way_out(allowed: AddressPolicy = HERE, **how: Any) -> AsyncIterator[tuple[SandboxProxy, int]]:
    socket = listener()
    port = socket.getsockname()[1]
    outlet = SandboxProxy(socket, allowed, **how)
    outlet.open()
    try:
        yield outlet, port
    finally:
        await outlet.close()
        assert outlet.connections == 0


async def sent(port: int, data: bytes) -> bytes:
    """Return everything received."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(data)
        return await reader.read()
    finally:
        writer.close()


def plain(url: str, host: str = "x") -> bytes:
    return f"GET {url} HTTP/1.1\r\nHost: {host}\r\n\r\n".encode()


def tunnel(place: str) -> bytes:
    return f"CONNECT {place} HTTP/1.1\r\nHost: {place}\r\n\r\n".encode()


async def eventually(true: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE):
        while not true():
            await asyncio.sleep(0.01)


# --- allowed and refused requests ------------------------------------------------------------------------------------


@pytest.mark.parametrize("loop", LOOPS)
def test_a_page_is_read_plainly_and_through_a_tunnel(loop: Callable[[], asyncio.AbstractEventLoop]) -> None:
    async def work() -> None:
        async with site({"/a": b"hello"}) as place, way_out() as (_, port):
            assert (await sent(port, plain(place.url("/a")))).endswith(b"\r\n\r\nhello")
            inner = plain("/a").replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n")
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(tunnel(f"127.0.0.1:{place.port}") + inner)
            assert b" 200 " in await reader.readuntil(b"\r\n\r\n")
            assert b" 200 x" in await reader.readuntil(b"\r\n\r\n")
            assert await reader.readexactly(5) == b"hello"
            writer.close()

    run(work(), loop)


def test_an_address_that_is_not_public_is_refused_with_the_reason() -> None:
    async def work() -> None:
        async with site({"/": b"secret"}) as place, way_out(NOTHING) as (_, port):
            for answer in (await sent(port, plain(place.url())), await sent(port, tunnel(f"127.0.0.1:{place.port}"))):
                line, _, rest = answer.decode().partition("\r\n")
                assert line.startswith("HTTP/1.1 403 refused: 127.0.0.1 is loopback; ")
                assert rest.endswith("(with --sandbox-network public, commands reach public addresses only)\n")
            for host in ("169.254.169.254", "10.0.0.1", "[::1]", "[::ffff:127.0.0.1]", "0.0.0.0", "2130706433"):
                assert b" 403 refused: " in (await sent(port, tunnel(f"{host}:80"))), host
                assert b" 403 refused: " in (await sent(port, plain(f"http://{host}/"))), host
            assert place.connections == 0

    run(work())


def test_a_name_is_resolved_here_and_refused_if_any_address_of_it_is_private() -> None:
    asked: list[str] = []

    async def resolve(host: str, port: int) -> Sequence[str]:
        asked.append(host)
        if host == "nowhere.test":
            raise OSError(errno.ENOENT, "Name or service not known")
        return {"inside.test": ["127.0.0.1"], "both.test": ["93.184.215.14", "127.0.0.1"]}[host]

    async def work() -> None:
        async with way_out(NOTHING, resolve=resolve) as (_, port):
            for host in ("inside.test", "both.test"):
                answer = await sent(port, tunnel(f"{host}:443"))
                assert answer.startswith(f"HTTP/1.1 403 refused: {host} has the address 127.0.0.1, which".encode())
            answer = await sent(port, tunnel("nowhere.test:443"))
            assert answer.startswith(b"HTTP/1.1 502 could not resolve nowhere.test: name or service not known\r\n")
        assert asked == ["inside.test", "both.test", "nowhere.test"]

    run(work())


def test_a_host_that_does_not_answer_is_reported_with_the_reason() -> None:
    async def work() -> None:
        closed = kept_port()
        async with way_out() as (_, port):
            answer = await sent(port, plain(f"http://127.0.0.1:{closed}/"))
            why = f"could not connect to 127.0.0.1 port {closed}: connection refused"
            assert answer.startswith(f"HTTP/1.1 502 {why}\r\n".encode())
            assert answer.endswith(f"{why}\n".encode())

    run(work())


def test_mail_is_not_sent_from_a_sandbox() -> None:
    async def work() -> None:
        async with way_out(AddressPolicy.parse(["0.0.0.0/0"])) as (_, port):
            for request in (tunnel("127.0.0.1:25"), plain("http://127.0.0.1:25/")):
                assert (await sent(port, request)).startswith(b"HTTP/1.1 403 port 25 is for mail between servers")

    run(work())


@pytest.mark.parametrize(
    "head",
    [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        b"GET file:///etc/passwd HTTP/1.1\r\nHost: x\r\n\r\n",
        b"GET https://example.com/ HTTP/1.1\r\nHost: x\r\n\r\n",
        b"CONNECT user@example.com:443 HTTP/1.1\r\nHost: x\r\n\r\n",
        b"CONNECT example.com:99999 HTTP/1.1\r\nHost: x\r\n\r\n",
        b"GET http://x/ HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n",
        b"GET http://x/ HTTP/1.1\r\nHost: x\r\nA: " + b"a" * 2**18,
        b"\r\n" * 2**17,
    ],
)
def test_a_request_that_is_not_for_a_proxy_is_refused_as_such(head: bytes) -> None:
    async def work() -> None:
        async with way_out(NOTHING) as (outlet, port):
            assert (await sent(port, head)).startswith(b"HTTP/1.1 400 send the proxy http://host/path, or CONNECT ")
            await eventually(lambda: outlet.connections == 0)

    run(work())


def test_a_host_that_would_write_into_the_answer_is_not_repeated() -> None:
    async def work() -> None:
        async with way_out(NOTHING) as (_, port):
            answer = await sent(port, plain("http://a%0d%0aset-cookie/"))
            assert answer.startswith(b"HTTP/1.1 502 not a usable host name\r\n")
            assert b"set-cookie" not in answer.lower()

    run(work())


def test_a_body_is_sent_on_and_one_that_waits_for_leave_gets_it() -> None:
    async def work() -> None:
        body = os.urandom(2**20)
        async with site({"/": b"ok"}) as place, way_out() as (_, port):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            head = (
                f"POST {place.url()} HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: {len(body)}\r\n\r\n"
            )
            writer.write(head.encode())
            assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 100 ")
            writer.write(body)
            assert (await reader.read()).endswith(b"\r\n\r\nok")
            writer.close()
            assert place.requests[0].body == body
            assert "expect" not in place.requests[0].headers

    run(work())


def test_a_length_beside_chunks_is_not_passed_on() -> None:
    """RFC 9112, 6.3: the chunks count, and a proxy removes the length."""

    async def answer(request: Request) -> None:
        heads.append(request.headers)
        head = {"content-length": "999", "transfer-encoding": "chunked"}
        await request.send(200, head, b"5\r\nhello\r\n0\r\n\r\n")

    heads: list[dict[str, str]] = []

    async def work() -> None:
        async with site({"/both": answer}) as place, way_out() as (_, port):
            both = "Content-Length: 0\r\nTransfer-Encoding: chunked"
            head = f"POST {place.url('/both')} HTTP/1.1\r\nHost: x\r\n{both}\r\n\r\n"
            said = await sent(port, head.encode() + b"0\r\n\r\n")
            assert b"\r\n5\r\nhello\r\n0\r\n\r\n" in said and b"content-length" not in said.lower()

    run(work())
    assert heads[0]["transfer-encoding"] == "chunked" and "content-length" not in heads[0]


def test_a_refused_upload_still_sees_why() -> None:
    async def work() -> None:
        async with way_out(NOTHING) as (_, port):
            body = b"x" * 2**20
            head = f"POST http://127.0.0.1/ HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n"
            assert (await sent(port, head.encode() + body)).startswith(b"HTTP/1.1 403 ")

    run(work())


@pytest.mark.parametrize("loop", LOOPS)
def test_a_tunnel_whose_client_has_closed_its_side_still_brings_the_answer(
    loop: Callable[[], asyncio.AbstractEventLoop],
) -> None:
    async def answered(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        got = await reader.read()
        writer.write(b"%d bytes" % len(got))
        writer.close()

    async def work() -> None:
        server = await asyncio.start_server(answered, "127.0.0.1", 0)
        place = server.sockets[0].getsockname()[1]
        async with server, way_out() as (outlet, port):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(tunnel(f"127.0.0.1:{place}") + b"x" * 300_000)
            writer.write_eof()
            assert (await reader.read()).endswith(b"\r\n\r\n300000 bytes")
            writer.close()
            await eventually(lambda: outlet.connections == 0)

    run(work(), loop)


# --- limits ----------------------------------------------------------------------------------------------------------


def test_a_client_that_sends_nothing_or_half_a_head_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outlets, "HEAD_TIME", 0.2)

    async def work() -> None:
        async with way_out() as (outlet, port):
            assert await sent(port, b"") == b""
            assert await sent(port, b"GET http://x/ HTTP/1.1\r\nHo") == b""
            assert outlet.connections == 0

    run(work())


def test_an_idle_tunnel_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outlets, "IDLE", 0.3)

    async def work() -> None:
        async with site({"/": gone}) as place, way_out() as (outlet, port):
            answer = await sent(port, tunnel(f"127.0.0.1:{place.port}"))
            assert answer.startswith(b"HTTP/1.1 200 ")
            assert outlet.connections == 0

    run(work())


def test_a_slow_tunnel_that_moves_is_not_idle(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outlets, "IDLE", 1.0)

    async def drips(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for _ in range(15):
            writer.write(b".")
            await writer.drain()
            await asyncio.sleep(0.1)
        writer.close()

    async def work() -> None:
        server = await asyncio.start_server(drips, "127.0.0.1", 0)
        async with server, way_out() as (_, port):
            answer = await sent(port, tunnel(f"127.0.0.1:{server.sockets[0].getsockname()[1]}"))
            assert answer.endswith(b"." * 15)

    run(work())


@pytest.mark.parametrize("loop", LOOPS[-1:])
def test_a_thousand_at_once_are_all_answered_though_not_all_at_once(
    loop: Callable[[], asyncio.AbstractEventLoop], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outlets, "HEAD_TIME", PATIENCE)  # the clients share the loop, and may be slow to write

    async def work() -> None:
        most = 0
        async with site({"/": b"hello"}) as place, way_out() as (outlet, port):

            async def one() -> bytes:
                nonlocal most
                answer = await sent(port, plain(place.url()))
                most = max(most, outlet.connections)
                return answer[-5:]

            assert await asyncio.gather(*(one() for _ in range(1_000))) == [b"hello"] * 1_000
            assert most <= MAX_EACH
            await eventually(lambda: outlet.connections == 0)

    run(work(), loop)


def test_one_proxy_takes_no_connection_from_another() -> None:
    async def work() -> None:
        room = SharedProxyLimits(most=40)
        async with (
            site({"/": b"hello"}) as place,
            way_out(shared=room) as (greedy, port),
            way_out(shared=room) as (_, other),
        ):
            held = [await asyncio.open_connection("127.0.0.1", port) for _ in range(60)]
            await eventually(lambda: greedy.connections == 40)
            answers = await asyncio.gather(*(sent(other, plain(place.url())) for _ in range(GUARANTEED)))
            assert [answer[-5:] for answer in answers] == [b"hello"] * GUARANTEED
            assert greedy.connections == 40
            for _, writer in held:
                writer.close()
            await eventually(lambda: greedy.connections == 0)

    run(work())


def test_no_descriptor_to_spare_is_waited_for_and_does_not_spin(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(outlets, "REST", 0.1)

    async def work() -> None:
        async with site({"/": b"hello"}) as place, way_out() as (_, port):
            client = socket.socket()
            client.setblocking(False)
            soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
            lowest = os.dup(0)
            os.close(lowest)
            resource.setrlimit(resource.RLIMIT_NOFILE, (lowest, hard))
            try:
                await asyncio.get_running_loop().sock_connect(client, ("127.0.0.1", port))
                began = time.monotonic()
                await eventually(lambda: len(caplog.records) >= 2)
                assert len(caplog.records) <= 2 + (time.monotonic() - began) / 0.1
            finally:
                resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
            reader, writer = await asyncio.open_connection(sock=client)
            writer.write(plain(place.url()))
            assert (await reader.read()).endswith(b"hello")
            writer.close()
        assert {record.getMessage() for record in caplog.records} == {
            "cannot accept a connection from a sandbox: Too many open files"
        }

    run(work())


def test_a_listener_that_is_shut_down_ends_the_accepting(caplog: pytest.LogCaptureFixture) -> None:
    async def work() -> None:
        taken = listener()
        outlet = SandboxProxy(taken, NOTHING)
        outlet.open()
        await asyncio.sleep(0)
        taken.shutdown(socket.SHUT_RDWR)
        await eventually(lambda: bool(caplog.records))
        await outlet.close()
        assert [record.getMessage() for record in caplog.records] == [
            "the proxy of a sandbox stopped: Invalid argument"
        ]

    run(work())


@pytest.mark.parametrize("loop", LOOPS)
def test_closing_ends_all_at_once_and_leaves_nothing(loop: Callable[[], asyncio.AbstractEventLoop]) -> None:
    async def work() -> None:
        async with site({"/": gone}) as place:
            tasks, files = asyncio.all_tasks(), len(os.listdir("/proc/self/fd"))
            clients = []
            async with way_out() as (outlet, port):
                for number in range(20):
                    reader, writer = await asyncio.open_connection("127.0.0.1", port)
                    clients.append((reader, writer))
                    if number % 2:
                        writer.write(tunnel(f"127.0.0.1:{place.port}"))
                        await reader.readuntil(b"\r\n\r\n")
                await eventually(lambda: outlet.connections == 20)
            for reader, writer in clients:
                with contextlib.suppress(ConnectionError):
                    assert await reader.read() == b""
                writer.close()
                with contextlib.suppress(ConnectionError):
                    await writer.wait_closed()
            await eventually(lambda: place_is_quiet(tasks, files))

    def place_is_quiet(tasks: set[asyncio.Task[Any]], files: int) -> bool:
        return asyncio.all_tasks() <= tasks and len(os.listdir("/proc/self/fd")) <= files

    run(work(), loop)


# --- fairness --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("piece", [2**16, 1])
def test_saturated_tunnels_are_paced_and_leave_the_loop_to_others(piece: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """At 4 MiB/s, so that the machine's speed does not matter. Reads of one byte are limited by their number."""
    seconds, rate = 1.0, 4 * 2**20
    received = reads = 0
    charge = ByteRateLimiter.charge

    def counted(pace: ByteRateLimiter, size: int) -> float:
        nonlocal reads
        reads += size < 2**17
        return charge(pace, size)

    monkeypatch.setattr(ByteRateLimiter, "charge", counted)

    async def swallow(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal received
        with contextlib.suppress(OSError):
            while data := await reader.read(2**16):
                received += len(data)
        writer.close()

    async def push(port: int, place: int) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(tunnel(f"127.0.0.1:{place}"))
        await reader.readuntil(b"\r\n\r\n")
        try:
            while True:
                writer.write(b"x" * piece)
                await writer.drain()
                await asyncio.sleep(0)
        finally:
            writer.transport.abort()

    async def work() -> None:
        server = await asyncio.start_server(swallow, "127.0.0.1", 0)
        place = server.sockets[0].getsockname()[1]
        async with server, way_out(shared=SharedProxyLimits(rate=rate)) as (_, port):
            began = time.monotonic()
            pushing = [asyncio.ensure_future(push(port, place)) for _ in range(8)]
            await asyncio.sleep(seconds)
            took = time.monotonic() - began
            for task in pushing:
                task.cancel()
            await asyncio.gather(*pushing, return_exceptions=True)
            assert 0 < received <= rate * (took + BURST) + 8 * 2**17
            assert 8 < reads <= rate / MIN_CHARGE * (took + BURST) + 8 * 4

    run(work())


@pytest.mark.parametrize(
    "head, piece",
    [("HTTP/1.1 200 x\r\nTransfer-Encoding: chunked\r\n\r\n", b"1\r\na\r\n"), ("", b"HTTP/1.1 100 x\r\n\r\n")],
)
def test_an_answer_in_pieces_of_a_byte_is_paced_by_their_number(head: str, piece: bytes) -> None:
    async def crumbs(request: Request) -> None:
        request.writer.write(head.encode())
        with contextlib.suppress(OSError):
            while True:
                request.writer.write(piece * 10_000)
                await request.writer.drain()

    async def work() -> None:
        loop = asyncio.get_running_loop()
        async with site({"/": crumbs}) as place, way_out() as (outlet, port):
            _, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(plain(place.url()))
            events, charge = 0, outlet._rate.charge

            def counted(size: int) -> float:
                nonlocal events
                events += size // EVENT
                return charge(size)

            outlet._rate.charge = counted  # type: ignore[method-assign]
            began = loop.time()
            await asyncio.sleep(1.0)
            assert 100 < events <= (loop.time() - began + BURST) * RATE / EVENT + 64
            writer.transport.abort()

    run(work())


def test_a_head_of_many_fields_counts_each_of_them() -> None:
    async def work() -> None:
        charged: list[int] = []
        async with way_out(NOTHING) as (outlet, port):
            charge = outlet._rate.charge
            outlet._rate.charge = lambda size: (charged.append(size), charge(size))[1]  # type: ignore[method-assign]
            fields = b"a:b\r\n" * 5_000
            answer = await sent(port, b"GET http://127.0.0.1/ HTTP/1.1\r\nHost: x\r\n" + fields + b"\r\n")
            assert answer.startswith(b"HTTP/1.1 403 ")
        assert 5_001 * EVENT in charged

    run(work())


def test_heads_that_come_all_at_once_are_not_parsed_all_at_once() -> None:
    head = b"GET http://127.0.0.1:25/ HTTP/1.1\r\nHost: x\r\n" + b"a:b\r\n" * 5_000 + b"\r\n"

    async def work() -> None:
        answered = 0
        async with way_out(NOTHING) as (outlet, port):
            clients = [await asyncio.open_connection("127.0.0.1", port) for _ in range(64)]
            await eventually(lambda: outlet.connections == 64)
            charge = outlet._rate.charge

            def counted(size: int) -> float:
                nonlocal answered
                answered += size >= 5_000 * EVENT
                return charge(size)

            outlet._rate.charge = counted  # type: ignore[method-assign]
            for _, writer in clients:
                writer.write(head)
            await clients[0][1].drain()
            began = time.monotonic()
            await asyncio.sleep(1.0)
            seconds = 5_000 * EVENT / RATE
            assert 1 <= answered <= (time.monotonic() - began + DEBT) / seconds + 2
            for _, writer in clients:
                writer.transport.abort()

    run(work())


# --- a network namespace of its own ----------------------------------------------------------------------------------

INSIDE = """
import array, fcntl, json, os, socket, struct, subprocess, sys
with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
    fcntl.ioctl(control, 0x8914, struct.pack("16sh14x", b"lo", 1))  # SIOCSIFFLAGS, IFF_UP
line = socket.socket(fileno=int(sys.argv[1]))
listener = socket.create_server(("127.0.0.1", 0), backlog=64)
port = json.dumps(listener.getsockname()[1]).encode()
line.sendmsg([port], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [listener.fileno()]))])
listener.close()
environment = json.loads(line.recv(65536))
for command in json.loads(environment.pop("COMMANDS")):
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=30)
    line.sendall(json.dumps([done.returncode, done.stdout, done.stderr]).encode() + b"\\n")
"""


NAMESPACE = ("unshare", "--user", "--map-root-user", "--net")
apart = pytest.mark.skipif(
    subprocess.run([*NAMESPACE, "true"], capture_output=True).returncode != 0, reason="no namespace can be had here"
)


async def ran_inside(allowed: AddressPolicy, *commands: Sequence[str], **how: Any) -> list[tuple[int, str, str]]:
    """Return exit code, output and errors of commands in a network namespace, whose proxy is served out here."""
    ours, theirs = socket.socketpair()
    program = (*NAMESPACE, sys.executable, "-c", INSIDE, str(theirs.fileno()))
    process = await asyncio.create_subprocess_exec(*program, pass_fds=[theirs.fileno()])
    theirs.close()
    ours.settimeout(PATIENCE)
    try:
        port, descriptors, _, _ = await asyncio.to_thread(socket.recv_fds, ours, 64, 1)
        outlet = SandboxProxy(socket.socket(fileno=descriptors[0]), allowed, **how)
        outlet.open()
        environment = {
            "PATH": os.environ["PATH"],
            **SandboxProxy.environment(int(port)),
            "COMMANDS": json.dumps(commands),
        }
        reader, writer = await asyncio.open_connection(sock=ours)
        writer.write(json.dumps(environment).encode())
        answers = [json.loads(await reader.readline()) for _ in commands]
        writer.close()
        await outlet.close()
        return [(code, output, errors) for code, output, errors in answers]
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()


def curl(*arguments: str) -> list[str]:
    return ["curl", "-sS", "--max-time", "20", *arguments]


@apart
def test_a_command_in_a_network_of_its_own_reaches_what_is_allowed_and_by_the_proxy_alone() -> None:
    async def resolve(host: str, port: int) -> Sequence[str]:
        return ["127.0.0.1"]

    async def work() -> None:
        async with site({"/": b"hello"}) as place:
            url, named = place.url(), place.url(host="site.test")
            answers = await ran_inside(
                AddressPolicy.parse(["127.0.0.1", "site.test"]),
                curl("--noproxy", "", url),
                curl("--noproxy", "", "--proxytunnel", url),
                curl(named),
                curl("--proxytunnel", named),
                curl("--noproxy", "*", url),
                resolve=resolve,
            )
            assert answers[:4] == [(0, "hello", "")] * 4
            code, output, errors = answers[4]
            assert (code, output) == (7, "")
            assert "Failed to connect" in errors or "Couldn't connect" in errors
            assert len(place.requests) == 4

    run(work())


@apart
def test_a_command_in_a_network_of_its_own_is_told_why_it_does_not_reach_what_is_not_public() -> None:
    async def resolve(host: str, port: int) -> Sequence[str]:
        return ["127.0.0.1" if host == "inside.test" else host]

    async def work() -> None:
        async with site({"/": b"secret"}) as place:
            answers = await ran_inside(
                NOTHING,
                curl("--noproxy", "", place.url()),
                curl("--noproxy", "", "-v", "--proxytunnel", place.url()),
                curl(place.url(host="inside.test")),
                curl("http://169.254.169.254/latest/meta-data/"),
                curl("-v", "https://169.254.169.254/"),
                resolve=resolve,
            )
            shown = [output + errors for _, output, errors in answers]
            assert [code for code, _, _ in answers] == [0, 56, 0, 0, 56]
            assert shown[0].startswith("refused: 127.0.0.1 is loopback; ")
            assert "HTTP/1.1 403 refused: 127.0.0.1 is loopback; " in shown[1]
            assert shown[2].startswith("refused: inside.test has the address 127.0.0.1, which is loopback; ")
            assert shown[3].startswith("refused: 169.254.169.254 is link-local; ")
            assert "HTTP/1.1 403 refused: 169.254.169.254 is link-local; " in shown[4]
            assert place.connections == 0

    run(work())


@pytest.mark.parametrize("loop", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_an_answer_to_a_client_that_has_gone_closes_the_connection(
    loop: Callable[[], asyncio.AbstractEventLoop],
) -> None:
    """It must not log a traceback."""

    async def work() -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            reader, writer = await asyncio.open_connection(sock=ours)
            writer.transport.abort()
            await writer.wait_closed()
            with pytest.raises(ConnectionError):
                await ProxyConnection(reader, writer).refuse(502)

    run(work(), loop)
