"""Take POSTs of HTTP+SSE to the replica that has the session's stream, which its id names."""

import msgspec

from toolgate.server.base.bus.bus import Bus, NoReplyError, UndeliveredError
from toolgate.server.base.bus.replica_ids import parse_id
from toolgate.server.base.principals.principal import Principal
from toolgate.transports.http.transport import PostTaker

KIND = "sse-post"


class _ForwardedPost(msgspec.Struct, array_like=True, frozen=True):
    """A POST, and who sent it. With an `answer` the message is refused, and that is sent on the stream."""

    session: str
    issuer: str
    subject: str
    client: str
    scopes: frozenset[str] | None
    until: float | None
    grant: str
    grant_scopes: frozenset[str] | None
    body: bytes
    answer: bytes | None


_decode = msgspec.msgpack.Decoder(_ForwardedPost).decode


class ForwardedPosts:
    """The POSTs that come to one replica and belong to another."""

    def __init__(self, bus: Bus) -> None:
        self._bus = bus

    async def forward(self, session: str, principal: Principal, body: bytes, answer: bytes | None) -> int:
        owner = parse_id(session)
        if owner is None or owner.replica == self._bus.replica.name:
            return 404
        post = _ForwardedPost(
            session,
            principal.issuer,
            principal.subject,
            principal.client,
            principal.scopes,
            principal.until,
            principal.grant,
            principal.grant_scopes,
            body,
            answer,
        )
        try:
            return int(await self._bus.mail.send(owner.replica, KIND, msgspec.msgpack.encode(post)))
        except UndeliveredError:
            return 503 if await self._bus.replica.is_alive(owner.replica) else 404
        except NoReplyError:
            return 503

    def receive(self, take: PostTaker) -> None:
        async def handle(data: bytes) -> bytes:
            post = _decode(data)
            principal = Principal(
                post.issuer,
                post.subject,
                post.client,
                post.scopes,
                until=post.until,
                grant=post.grant,
                grant_scopes=post.grant_scopes,
            )
            return str(await take(post.session, principal, post.body, post.answer)).encode()

        self._bus.mail.receive(KIND, handle)
