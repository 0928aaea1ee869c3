"""Keep the last lines of what a program writes."""

from toolgate.tools.workspace.output.ansi import clean_output

SIZE = 16 * 2**10  # bytes: more than a traceback
LINES = 100


class LineTail:
    """The last LINES lines, and of these the last SIZE bytes."""

    def __init__(self) -> None:
        self._data = bytearray()
        self._is_cut = False

    def write(self, data: bytes) -> bool:
        """Add data. Return whether nothing was dropped."""
        self._data += data[-SIZE:]
        dropped = max(0, len(data) - SIZE) + max(0, len(self._data) - SIZE)
        if dropped:
            del self._data[:-SIZE]
            self._is_cut = True
        return not dropped

    @property
    def text(self) -> str:
        """The lines as clean text. The first is whole, unless it is the only one."""
        data = bytes(self._data)
        if self._is_cut:
            data = data[data.find(b"\n", 0, -1) + 1 :]
        lines = clean_output(data, final=True)[0].splitlines(keepends=True)
        return "".join(lines[-LINES:])
