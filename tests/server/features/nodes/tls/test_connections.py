"""Gateways and nodes over TLS: who is not known is refused, and costs nothing that is left."""

import asyncio
import contextlib
import os
import socket
import ssl
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.clients.raw_client import ROOT
from tests.server.features.nodes.nodes import NodeProcess, gateway, remote_caller, remote_workspace, running_node
from tests.server.features.nodes.tls.certificates import (
    YEARS_AGO,
    UncheckedCertificate,
    write_gateway_certificate,
    write_node_certificate,
)
from tests.servers import forked_command
from tests.servers.reserved_port import kept_port
from tests.tools.shell_commands import BOUND, text_of
from toolgate.server.base.rpc import frames
from toolgate.server.features.nodes import messages
from toolgate.server.features.nodes.address import NodeAddress
from toolgate.server.features.nodes.gateway import link
from toolgate.server.features.nodes.node.listener import MAX_HANDSHAKES
from toolgate.server.features.nodes.tls.certificate_file import GATEWAY, CertificateFile

HOST = "127.0.0.1"


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcess]:
    folder = tmp_path_factory.mktemp("node")
    with running_node(folder, "--sandbox", "none", "--listen", f"unix:{folder}/node.sock", host=HOST) as node:
        yield node


def refusal(address: NodeAddress, certificate: object) -> str:
    """Return why a gateway gets no welcome."""
    with pytest.raises(link.NodeUnreachableError) as error:
        link.greet(address, BOUND, certificate)  # type: ignore[arg-type]  # some are unchecked
    return str(error.value)


def test_a_call_through_tls_is_like_another(node: NodeProcess) -> None:
    async def body() -> None:
        async with remote_caller(node) as me:
            assert text_of(await me.bash("echo hello")) == "hello\n"
            data = bytes(range(256)) * 2**15
            await me.workspace.write_file("big.bin", data, suffix=".bin")
            assert await me.workspace.read_file(str(me.workspace.root / "big.bin"), 2**24, anywhere=False) == data
            task = (await me.call("BackgroundBash", command="seq 20000")).structured["task_id"]
            assert await me.workspace.wait(task, BOUND)
            assert len(await me.workspace.read(task, 0, 2**20)) == sum(len(f"{each}\n") for each in range(1, 20_001))

    asyncio.run(body())


def test_a_node_listens_at_several_addresses(node: NodeProcess) -> None:
    beside = link.greet(NodeAddress(node.socket), BOUND)
    assert beside.epoch == link.greet(node.address, BOUND, node.certificate).epoch
    assert f" listening on {node.address} and unix:{node.socket}, " in node.log.read_text()


def test_a_gateway_without_a_good_certificate_is_refused(node: NodeProcess, tmp_path: Path) -> None:
    own = node.certificates
    nodes, stranger = write_node_certificate(own, HOST, name="other.pem"), write_gateway_certificate(tmp_path)
    expired = write_gateway_certificate(own, YEARS_AGO, name="old.pem")
    for file in (nodes, stranger, expired):
        told = refusal(node.address, UncheckedCertificate(file, own))
        assert told == "it closed the connection, and its log says whether it refuses this server's certificate"
    assert node.answers()
    assert "its certificate is not a gateway's" in node.log.read_text()  # the first; later ones are counted


def test_older_tls_and_plain_bytes_are_refused(node: NodeProcess) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    with socket.create_connection((HOST, node.address.port), BOUND) as line, pytest.raises(OSError):
        context.wrap_socket(line)
    with socket.create_connection((HOST, node.address.port), BOUND) as line:
        line.sendall(frames.encode_frame(messages.Hello(1, "0.1.0", "")))
        with contextlib.suppress(ConnectionError):
            assert b"welcome" not in line.recv(2**16)
    with socket.create_connection((HOST, node.address.port), BOUND) as line:
        line.sendall(b"GET / HTTP/1.1\r\nHost: node\r\n\r\n")
        with contextlib.suppress(ConnectionError):
            assert b"HTTP" not in line.recv(2**16)
    assert node.answers()


def test_strangers_keep_no_gateway_out(node: NodeProcess) -> None:
    """The bound on connections that have shown nothing yet ends the oldest of them, never a gateway's."""

    async def body() -> None:
        async with gateway(node) as remote:
            assert await remote.get_or_open("u-" + "1" * 40).list() == []
            with contextlib.ExitStack() as strangers:
                lines = [
                    strangers.enter_context(socket.create_connection((HOST, node.address.port), BOUND))
                    for _ in range(MAX_HANDSHAKES + 20)
                ]
                await asyncio.to_thread(link.greet, node.address, BOUND, node.certificate)
                assert remote.links[0].is_connected
                assert await remote.get_or_open("u-" + "1" * 40).list() == []
                lines[0].settimeout(BOUND)
                with contextlib.suppress(ConnectionError):
                    assert lines[0].recv(1) == b""
                lines[-1].settimeout(0.1)
                with pytest.raises(TimeoutError):
                    lines[-1].recv(1)

    asyncio.run(body())


@pytest.mark.soak  # over a unix socket `make test` has it
def test_a_gateway_that_reads_nothing_over_tls_costs_only_itself(node: NodeProcess) -> None:
    certificate = node.certificate
    assert certificate is not None

    async def body() -> None:
        async with remote_workspace(node) as mine:
            await mine.write_file("big.bin", bytes(2**23), suffix=".bin")
            reader, writer = await asyncio.open_connection(HOST, node.address.port, ssl=certificate.get_context())
            writer.write(frames.encode_frame(messages.Hello(messages.VERSION, "0", "reads-nothing")))
            arguments = {"path": str(mine.root / "big.bin"), "limit": 2**23, "anywhere": False}
            for number in range(2, 60):  # 640 MB in base64
                request = messages.NodeRequest(
                    number, mine.root.name, "workspace.read_file", frames.encode_raw(arguments)
                )
                writer.write(frames.encode_frame(request))
            await asyncio.sleep(1.0)
            began = time.monotonic()
            assert (await mine.execute("echo well", wait=BOUND, limit=100))[1].excerpt.text == "well\n"
            assert time.monotonic() - began < BOUND / 4
            status = Path(f"/proc/{node.process.pid}/status").read_text()
            resident = int(status.partition("VmRSS:")[2].split()[0]) // 1024
            assert resident < 500, f"{resident} MiB"
            writer.transport.abort()
            assert reader is not None

    asyncio.run(body())


# -- what a gateway says of the other side


@contextlib.contextmanager
def fake_node(answer: bytes, certificate: UncheckedCertificate | None = None) -> Iterator[NodeAddress]:
    """Answer each connection with these bytes, and keep it open."""
    with socket.create_server((HOST, 0)) as line, contextlib.ExitStack() as kept:

        def serve() -> None:
            with contextlib.suppress(OSError):
                while True:
                    connection = kept.enter_context(line.accept()[0])
                    with contextlib.suppress(OSError):
                        if certificate is not None:
                            connection = kept.enter_context(
                                certificate.get_context().wrap_socket(connection, server_side=True)
                            )
                        connection.sendall(answer)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield NodeAddress(host=HOST, port=line.getsockname()[1])
        line.shutdown(socket.SHUT_RDWR)
        thread.join(BOUND)


WELCOME = messages.Welcome(1, "0.1.0", "e", "none", "", "/", None)


def test_a_gateway_names_what_is_wrong_with_the_nodes_side(tmp_path: Path) -> None:
    mine = CertificateFile(write_gateway_certificate(tmp_path), GATEWAY)
    (tmp_path / "other").mkdir()
    good = write_node_certificate(tmp_path, HOST)
    for file, answer, reason in (
        (write_node_certificate(tmp_path, "elsewhere", name="a"), b"", f"not for {HOST}: toolgate node certificate"),
        (write_node_certificate(tmp_path, HOST, now=YEARS_AGO, name="b"), b"", "the node's certificate has expired"),
        (mine.path, b"", "the other side's certificate is not a node's"),
        (write_node_certificate(tmp_path / "other", HOST), b"", "the node's certificate is not accepted"),
        (good, frames.encode_frame(messages.Welcome(99, "9.9", "e", "none", "", "/", None)), "is Toolgate 9.9, this"),
        (good, frames.encode_frame(messages.Welcome(0, "0.0", "e", "none", "", "/", None)), "is Toolgate 0.0, this"),
        (good, frames.encode_frame(messages.Refusal("go\x1b[0m")), r"refuses this server: go\x1b[0m"),
        (good, b"\x80\x00\x00\x00" + b"x" * 2**17, "not a node"),
        (good, frames.encode_frame(messages.Pong()), "not a node"),
    ):
        with fake_node(answer, UncheckedCertificate(file, tmp_path, ssl.PROTOCOL_TLS_SERVER)) as address:
            assert reason in refusal(address, mine)
    with fake_node(b"HTTP/1.1 400 Bad Request\r\n\r\n") as address:
        assert "does not speak TLS" in refusal(address, mine)
    with fake_node(frames.encode_frame(WELCOME)) as address:
        assert "does not speak TLS" in refusal(address, mine)


def test_a_node_that_never_answers_is_an_error_in_time(tmp_path: Path) -> None:
    mine = CertificateFile(write_gateway_certificate(tmp_path), GATEWAY)
    server = UncheckedCertificate(write_node_certificate(tmp_path, HOST), tmp_path, ssl.PROTOCOL_TLS_SERVER)
    with fake_node(b"") as silent, fake_node(b"", server) as mute:
        for address in (silent, mute):
            began = time.monotonic()
            with pytest.raises(link.NodeUnreachableError, match="no answer in time"):
                link.greet(address, 0.3, mine)
            assert time.monotonic() - began < BOUND / 10


def test_an_address_where_nobody_is_says_so(tmp_path: Path) -> None:
    mine = CertificateFile(write_gateway_certificate(tmp_path), GATEWAY)
    assert refusal(NodeAddress(host=HOST, port=kept_port(HOST)), mine) == "connection refused"
    assert "name" in refusal(NodeAddress(host="no-such-host.invalid", port=7443), mine)


# -- options


def serve_node(*words: str) -> subprocess.CompletedProcess[str]:
    return forked_command.run([forked_command.COMMAND, *words], "", cwd=ROOT, env={"PATH": os.environ["PATH"]})
