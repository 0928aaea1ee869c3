"""Record each tools/call in the audit log, however it ends. An observer (server/calls/observers.py)."""

import asyncio
import hashlib
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec

from toolgate.server.base.task import StoredTask
from toolgate.server.calls.observers import CallEnd
from toolgate.server.calls.tasks import tool_of
from toolgate.server.protocol.messages import Request, replace_surrogates
from toolgate.server.protocol.request_meta import client_name
from toolgate.server.protocol.session import Call, short_hash
from toolgate.server.state.audit.entry import AuditEntry
from toolgate.server.state.audit.store import EntryLog
from toolgate.tools.api.content import Audio, Content, EmbeddedResource, Image, Output, Text
from toolgate.tools.api.schema.schema import measure

LARGE_SIZE = 256 * 1024  # characters of arguments that take a millisecond to digest
LARGE_COUNT = 5_000  # values of arguments, the same
FEW_ARGUMENTS = 16  # arguments that are measured without a walk
MAX_NAME = 200  # characters of the names of clients and tools, which may be any text

KnownArguments = tuple[str, Any]  # their digest, and what is kept of them

_EMPTY_HASH = hashlib.sha256()
_encode = msgspec.json.Encoder(order="deterministic").encode


class AuditRecorder:
    """`redact` returns what is kept of a call's arguments; None keeps only their digest. `sandbox(principal)` is the
    sandbox level of a principal's commands."""

    def __init__(
        self, log: EntryLog, sandbox: Callable[[str], str | None], redact: Callable[[dict[str, Any]], Any] | None = None
    ) -> None:
        self._log = log
        self._sandbox = sandbox
        self._redact = redact
        self._no_arguments = "", None if redact is None else redact({})

    def prepare(self, call: Call) -> Awaitable[None] | None:
        """Compute the digest of large arguments in a thread: the largest take 50 ms."""
        arguments = call.params.get("arguments")
        return self._digest_in_thread(call, arguments) if is_large(arguments) else None

    async def _digest_in_thread(self, call: Call, arguments: Any) -> None:
        call.digest = await asyncio.to_thread(digest, arguments)

    def call_started(self, call: Call) -> KnownArguments:
        return self._read_arguments(call.params.get("arguments"), call.digest)

    def call_ended(self, call: Call, begun: KnownArguments | None, end: CallEnd) -> None:
        if begun is None:
            return
        session, params = call.session, call.params
        sandbox = self._sandbox(session.principal)
        output = call.output if end.outcome != "task" else None  # a task ends twice, and each end has a line of its own
        self._add(
            session.principal,
            session.client or client_name(params.get("_meta")),
            params.get("name"),
            begun,
            end.outcome,
            end.seconds,
            key=session.key,
            task=end.task,
            decision=call.decision,
            sandbox=f"{sandbox} read-only" if call.is_read_only else sandbox,
            output=output,
            mounted=call.mounted,
        )

    def task_lost(self, kept: StoredTask) -> None:
        seconds = self._log.now() - kept.created  # the line of its start has the rest
        self._add(kept.principal, "", tool_of(kept.id), self._no_arguments, "fault", seconds, task=kept.id)

    def scope_missing(self, principal: str, client: str, request: Request) -> None:
        """Record a call without the scope it needs. Large arguments get no digest: nothing was done with them."""
        name, arguments = request.params.get("name"), request.params.get("arguments")
        known = self._no_arguments if is_large(arguments) else self._read_arguments(arguments, "")
        self._add(principal, client, name, known, "refused", 0.0, decision="scope")

    async def aclose(self) -> None:
        await self._log.aclose()

    def _read_arguments(self, arguments: Any, known_digest: str) -> KnownArguments:
        """Return what is recorded of the arguments: before the call, as a tool may change them."""
        known = known_digest or digest(arguments if arguments is not None else {})
        if self._redact is None:
            return known, None
        return known, self._redact(arguments if isinstance(arguments, dict) else {})

    def _add(
        self,
        principal: str,
        client: str,
        tool: Any,
        arguments: KnownArguments,
        outcome: str,
        seconds: float,
        *,
        key: str = "",
        task: str | None = None,
        decision: str = "allowed",
        sandbox: str | None = None,
        output: Output | None = None,
        mounted: tuple[str, str] | None = None,
    ) -> None:
        digest, redacted = arguments
        mount, original = mounted or (msgspec.UNSET, msgspec.UNSET)
        self._log.add(
            AuditEntry(
                seq=0,
                time="",
                principal=principal,
                client=_clean_name(client),
                session=short_hash(key) if key else "",
                tool=_clean_name(tool) if isinstance(tool, str) else "",
                task=task,
                digest=digest,
                arguments=redacted,
                decision=decision,
                sandbox=sandbox,
                outcome=outcome,
                exit=None if output is None else _exit(output),
                duration_ms=int(seconds * 10_000 + 0.5) / 10,
                bytes=0 if output is None else _size(output),
                mount=mount,
                original=original if isinstance(original, msgspec.UnsetType) else _clean_name(original),
            )
        )


def create_recorder(log: EntryLog, level: str, sandbox: Callable[[str], str | None]) -> AuditRecorder:
    """Return the recorder into `log`; `level` is "on" or "full"."""
    if level != "full":
        return AuditRecorder(log, sandbox)
    from toolgate.server.features.telemetry.audit.redaction import redact  # start-up: its expressions are compiled

    return AuditRecorder(log, sandbox, redact)


def is_large(arguments: Any) -> bool:
    if isinstance(arguments, dict) and len(arguments) <= FEW_ARGUMENTS:  # most calls: a few plain values
        size = 0
        for name, value in arguments.items():
            if type(value) is str:
                size += len(name) + len(value)
            elif isinstance(value, (dict, list)):
                break
            else:
                size += len(name)
        else:
            return size > LARGE_SIZE
    measured = measure(arguments, LARGE_COUNT)
    return measured is None or measured[0] > LARGE_SIZE


def digest(arguments: Any) -> str:
    """Return the SHA-256, in hex, of the arguments as JSON: without spaces, names sorted."""
    try:
        spelled = _encode(arguments)
    except UnicodeEncodeError:
        spelled = _encode(replace_surrogates(arguments))
    hash = _EMPTY_HASH.copy()  # a third faster than a new one
    hash.update(spelled)
    return hash.hexdigest()


def _clean_name(name: str) -> str:
    return name[:MAX_NAME] if name.isascii() else replace_surrogates(name[:MAX_NAME])


def _exit(output: Output) -> int | None:
    """Return the exit code of what a tool ran, None if it names none."""
    held = output.structured
    if held is None:
        return None
    code = held.get("exit_code") if isinstance(held, dict) else getattr(held, "exit_code", None)
    return code if type(code) is int else None


def _size(output: Output) -> int:
    size = 0
    for block in output.content:
        size += _bytes(block.text) if type(block) is Text else _size_of(block)
    return size


def _size_of(block: Content) -> int:
    match block:
        case Image() | Audio():
            return len(block.data)
        case EmbeddedResource(resource):
            return _bytes(resource.text or "") + len(resource.blob or b"")
        case _:
            return 0


def _bytes(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode("utf-8", "replace"))
