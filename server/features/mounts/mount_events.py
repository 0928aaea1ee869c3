"""Tell people of mounts that fail, and of those that work again: events that clients subscribe to."""

from typing import Annotated

import msgspec

from toolgate.server.features.mounts.upstream.errors import UpstreamFault
from toolgate.tools.api.event import EventType, event


class MountFailurePayload(msgspec.Struct, frozen=True):
    """`code` and `error` are those that a call of its tools is answered with."""

    mount: str
    code: str
    error: str


class MountRecoveryPayload(msgspec.Struct, frozen=True):
    mount: str


class MountEvents:
    """The types of events of one server. `types` are served while it has mounts."""

    def __init__(self) -> None:
        self._failed = _create_failed()
        self._recovered = _create_recovered()
        self.types: tuple[EventType, ...] = (self._failed, self._recovered)

    def tell(self, mount: str, principal: str, fault: UpstreamFault | None) -> None:
        """Tell `principal` that a mount fails for it, or works again."""
        if fault is None:
            self._recovered.emit(principal, MountRecoveryPayload(mount))
        else:
            self._failed.emit(principal, MountFailurePayload(mount, fault.code, fault.sentence))


def _create_failed() -> EventType:
    @event(name="mount.failed", payload=MountFailurePayload)
    def mount_failed(
        mount: Annotated[str | None, "the name of the mount"] = None,
        code: Annotated[str | None, "why, such as CONNECT_FAILED"] = None,
    ) -> None:
        """A mounted server can't be reached, or has ended while it was in use. It is tried again by itself."""

    return mount_failed


def _create_recovered() -> EventType:
    @event(name="mount.recovered", payload=MountRecoveryPayload)
    def mount_recovered(mount: Annotated[str | None, "the name of the mount"] = None) -> None:
        """A mounted server that had failed works again."""

    return mount_recovered
