"""Hold the streams of one key, such as a session's, in one stream of Redis: a key for each would cost 4 KB."""

from toolgate.server.base.bus.bus import MAX_DATA, StreamEntry, check_entry, check_name
from toolgate.server.base.bus.settings import BusSettings
from toolgate.server.features.replicas.redis.commands import RedisCommands
from toolgate.server.features.replicas.redis.connection import RedisServer, Reply
from toolgate.server.features.replicas.redis.write_behind import WriteBehind

READ = """
local found = {}
for _, entry in ipairs(redis.call('XRANGE', KEYS[1], '-', '+')) do
    local fields = entry[2]
    if fields[2] == ARGV[1] and tonumber(fields[4]) > tonumber(ARGV[2]) then
        found[#found + 1] = tonumber(fields[4])
        found[#found + 1] = fields[6]
    end
end
return found
"""


class RedisStreams:
    """The streams of one server. `seconds` is the time limit of a flush."""

    def __init__(
        self, server: RedisServer, commands: RedisCommands, write_behind: WriteBehind, settings: BusSettings
    ) -> None:
        self._server = server
        self._commands = commands
        self._write_behind = write_behind
        self._prefix = settings.prefix
        self._size = settings.streams.size
        self._seconds = settings.command

    def append(self, key: str, stream: str, number: int, data: bytes) -> bool:
        check_entry(stream, number, data)
        return len(data) <= MAX_DATA and self._write_behind.append(self._name(key), stream, number, data)

    async def read(self, key: str, stream: str, after: int = 0) -> list[StreamEntry]:
        check_name(stream)
        words = ("EVAL", READ, 1, self._name(key), stream, after)
        reply: Reply = await self._commands.run(*words, may_repeat=True, expected=self._size)
        entries: list[StreamEntry] = []
        for number, data in zip(reply[::2], reply[1::2], strict=True):
            if number > after:  # a repeated write wrote it twice
                entries.append(StreamEntry(number, data))
                after = number
        return entries

    async def delete(self, key: str) -> None:
        self._write_behind.discard(self._name(key))
        await self._commands.run("DEL", self._name(key))

    async def flush(self) -> None:
        try:
            await self._write_behind.flush(self._seconds)
        except TimeoutError as error:
            raise self._server.unreachable(self._commands.link.failure or error, self._seconds) from None

    def _name(self, key: str) -> str:
        check_name(key)
        return f"{self._prefix}stream:{key}"
