"""Run `toolgate` and record its function calls: `traced_server.py OUT ROOT ARGUMENTS…`.

A program: tests/architecture/walk.py starts it. OUT gets a line for each call of a function of the program: the time on
the system's monotonic clock (ns), the file from ROOT, the function.
"""

import os
import sys
import time
from types import FrameType
from typing import Any


def main(out: str, root: str, *arguments: str) -> int:
    from toolgate.server.__main__ import main as toolgate

    file = os.open(out, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)  # a server may end without a last word
    folders = tuple(f"{root}/{top}/" for top in ("server", "tools", "transports"))

    def profile(frame: FrameType, event: str, _: Any) -> None:
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(folders):
            path = code.co_filename.removeprefix(f"{root}/")
            os.write(file, f"{time.monotonic_ns()} {path} {code.co_qualname}\n".encode())

    sys.argv = ["toolgate", *arguments]
    sys.setprofile(profile)
    return toolgate()


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
