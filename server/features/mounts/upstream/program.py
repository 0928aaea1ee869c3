"""Carry messages over a program's pipes, a line each. What is no JSON on its output is counted and left out."""

import asyncio
import contextlib
from collections.abc import Collection, Mapping

from toolgate.server.features.mounts.upstream.errors import MountError, UpstreamFault, hide_secrets
from toolgate.server.features.mounts.upstream.messages import MAX_MESSAGE
from toolgate.server.features.mounts.upstream.peer import Flight, UpstreamPeer
from toolgate.tools.api.errors import ToolError
from toolgate.tools.workspace.workspace import ProgramStream

GRACE = 2.0  # seconds from the end of its input to SIGTERM, and from there to SIGKILL
EXIT_WITHIN = 1.0  # seconds for the exit code of a program that has closed its output
MAX_SAID = 2_000  # characters of its last words
BLANK = b" \t\r"


class ProgramWire:
    """The pipes of one program. `secrets` are not repeated of its last words."""

    def __init__(self, program: ProgramStream, peer: UpstreamPeer, secrets: Collection[str]) -> None:
        self._program = program
        self._secrets = secrets
        self._peer = peer
        self._is_closed = False
        self._writing = asyncio.Lock()
        self._reading = asyncio.get_running_loop().create_task(self._read())

    async def send(self, message: bytes, flight: Flight | None = None, headers: Mapping[str, str] = {}) -> None:
        try:
            async with self._writing:
                await self._write(message + b"\n")
        except ToolError:  # its input is closed, or its node away
            if self._peer.failure is None:
                await asyncio.wait([self._reading], timeout=EXIT_WITHIN)  # it knows how the program ended
            fault = self._peer.failure or UpstreamFault("STDIO_CLOSED", "it has closed its input")
            raise fault.create_error() from None

    async def _write(self, line: bytes) -> None:
        try:
            await self._program.write(line)
        except asyncio.CancelledError:  # a part of it may be written: what follows could not be read
            self._peer.fail(UpstreamFault("STDIO_CLOSED", "it did not take its input in time"))
            raise

    def abandon(self, flight: Flight) -> bool:
        return False

    async def read_log(self) -> str:
        try:
            return hide_secrets((await self._program.stderr_tail()).strip(), self._secrets)
        except ToolError:  # its node is away
            return ""

    async def read_last_words(self) -> str:
        """Return the end of its log, as a part of a sentence, or ""."""
        said = (await self.read_log())[-MAX_SAID:]
        return f"its last words: {said}" if said else ""

    async def close(self) -> None:
        self._is_closed = True
        try:
            await self._program.close(GRACE)
        finally:
            self._reading.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._reading

    async def _read(self) -> None:
        pending = bytearray()
        try:
            while data := await self._program.read():
                *lines, rest = data.split(b"\n")
                for line in lines:
                    pending += line
                    if pending.strip(BLANK):
                        self._peer.receive(bytes(pending))
                    pending.clear()
                pending += rest
                if len(pending) > MAX_MESSAGE:
                    raise MountError("TOO_LARGE", f"it sent a line of more than {MAX_MESSAGE // 2**20} MiB")
                if self._peer.failure is not None:
                    raise self._peer.failure.create_error()
            self._peer.fail(await self._describe_end())
        except ToolError as error:  # its own, or the node's
            fault = error.fault if isinstance(error, MountError) else UpstreamFault("STDIO_CLOSED", error.text)
            self._peer.fail(fault)
            if not self._is_closed:
                await self._program.close(0.0)  # nobody listens to it any more

    async def _describe_end(self) -> UpstreamFault:
        try:
            async with asyncio.timeout(EXIT_WITHIN):
                end = await self._program.wait()
        except TimeoutError:
            return UpstreamFault("STDIO_CLOSED", "it has closed its output and goes on running")
        said = await self.read_last_words()
        why = [*([end.reason] if end.reason else []), *end.hits]
        told = [f"it exited with code {end.exit_code}", *why, *([said] if said else [])]
        return UpstreamFault("STDIO_EXITED", "; ".join(told))
