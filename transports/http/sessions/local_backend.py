"""Store a session of an HTTP client for the next process, in a row. No other server has it."""

import asyncio
import logging
import os
from contextlib import AbstractAsyncContextManager, nullcontext
from pathlib import Path

import msgspec

from toolgate.server.base.errors import StateError
from toolgate.server.base.principals.principal import Principal
from toolgate.server.protocol.messages import Inbound, Outbound
from toolgate.server.protocol.revisions import WITH_SESSION
from toolgate.server.state.rows.sessions import ResumedSession, SessionDetails, SessionRecords, encode_details
from toolgate.transports.http.sessions.event_stream import EventStream
from toolgate.transports.http.sessions.session import HttpSession, union_scopes

log = logging.getLogger("toolgate.http")


class LocalBackend:
    """The row of one session. Without `records` it ends with the process. `is_stored`: it has a row."""

    __slots__ = ("_records", "_saved_data", "_session", "is_stored")

    def __init__(self, session: HttpSession, records: SessionRecords | None = None, *, is_stored: bool = False) -> None:
        self.is_stored = is_stored
        self._session = session
        self._records = records
        self._saved_data: bytes | None = None
        if records is not None:
            session.session.place.save = self._save

    @property
    def can_ask(self) -> bool:
        return self._session.has_listener

    def note_rights(self) -> None:
        if self.is_stored:
            tasks = self._session.tasks
            saving = asyncio.get_running_loop().create_task(self._save())
            tasks.add(saving)
            saving.add_done_callback(tasks.discard)

    def note_stream(self, stream: EventStream) -> None: ...

    def note_end(self) -> None: ...

    def send(self, message: Outbound) -> None:
        self._session.send_here(message)

    async def write(self) -> None: ...

    async def pass_on(self, message: Inbound | list[Inbound]) -> None: ...

    async def resume(self, id: str, principal: Principal) -> tuple[EventStream, int] | None:
        return self._session.find_event(id, principal.scopes)

    def keep_request(self, stream: EventStream, message: Inbound | list[Inbound]) -> None: ...

    def listen(self, stream: EventStream) -> AbstractAsyncContextManager[None]:
        return nullcontext()

    async def _save(self) -> None:
        """Store changes. If that fails, the session ends with the process."""
        session, records, place = self._session, self._records, self._session.session.place
        directories = place.cwd, place.previous
        if records is None or session.is_ended or session.session.revision is None:
            return
        data = encode_details(_to_details(session, session.session.revision.name, records.workspace))
        if data is None or data == self._saved_data:
            place.note_saved(*directories)  # nothing to store until it changes
            return
        is_new, self.is_stored = not self.is_stored, True
        try:
            if is_new:
                whose = session.principal
                await records.add(session.record_key, (whose.issuer, whose.subject, whose.client), data)
            else:
                await records.update(session.record_key, data)
        except StateError as error:
            self.is_stored = not is_new
            log.warning("a session is not saved, and does not outlive this process as it is: %s", error)
        else:
            self._saved_data = data
            place.note_saved(*directories)


def _to_details(held: HttpSession, revision: str, workspace: str) -> SessionDetails:
    session = held.session
    return SessionDetails(
        name=session.client,
        revision=revision,
        capabilities=session.capabilities,
        log_level=session.log_level,
        subscribed=list(session.subscribed),
        scopes=None if held.all_scopes is None else sorted(held.all_scopes),
        grants=sorted(right for right in held.rights if isinstance(right, str)),
        workspace=workspace,
        cwd=None if session.place.cwd is None else os.fsencode(session.place.cwd),
        plan=session.place.plan,
    )


def restore_session(held: HttpSession, taken: ResumedSession, workspace: str) -> None:
    """Give a new session what an earlier process stored of it."""
    session, details = held.session, taken.details
    session.revision = WITH_SESSION[details.revision]
    session.capabilities = details.capabilities
    session.log_level = details.log_level
    session.client = details.name
    held.rights.update(details.grants)
    if details.cwd is not None and details.workspace == workspace:
        session.place.cwd = session.place.saved_cwd = Path(os.fsdecode(details.cwd))
    session.place.plan = details.plan
    held.began = taken.began_at
    wanted = frozenset(details.scopes or ())
    held.all_scopes = union_scopes(held.all_scopes, wanted)
    for message in taken.messages:
        if message.stream:
            held.add_stream(message.stream, wanted).restore(message.number, message.data)
        else:
            stream = held.open_get_stream()
            stream.wanted |= wanted
            stream.send(msgspec.Raw(message.data))
