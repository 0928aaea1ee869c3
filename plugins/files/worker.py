"""Answer one request, which standard input brings: the program in the caller's sandbox.

A call waits for the imports of this program. So it has few, and those of one task stand in its line below.
"""

import marshal
import os
import sys
from _json import encode_basestring_ascii

from .paths import MAX_PATH, FileError, Places, show_name

TYPE_CHECKING = False  # type checkers take it as true; a call need not import typing
if TYPE_CHECKING:
    from typing import Any


def answer(request: "dict[str, Any]") -> dict[str, str]:
    """Return the answer to a request: `text` and, for a file, its `key` and `stamp`; or `error`, for the model."""
    places = Places(request["cwd"], request["roots"], request["private"])
    given = request["arguments"]
    path = given["path"]
    name = show_name(path[:MAX_PATH])
    try:
        match request["task"]:
            case "read":
                from . import reading

                return reading.read(places, **given)
            case "write":
                from . import changing

                return changing.write(places, **given)
            case "edit":
                from . import changing

                return changing.edit(places, **given)
            case "glob":
                from . import searching

                return searching.glob(places, **given)
            case _:
                from . import searching

                return searching.grep(places, **given)
    except FileError as error:
        return {"error": f"{name}: {error}"}
    except FileNotFoundError:
        from .near import suggest_paths

        real = os.path.realpath(os.path.join(places.cwd, os.path.expanduser(path)))
        return {"error": f"{name} does not exist{suggest_paths(real)}"}
    except MemoryError:
        return {"error": f"{name}: the limit of memory was reached (--limit memory)"}
    except (OSError, ValueError) as error:
        return {"error": f"{name}: {(getattr(error, 'strerror', None) or str(error)).lower()}"}


def main() -> None:
    """Read the request after the modules, and write the answer as a JSON object of strings."""
    found = answer(marshal.load(sys.stdin.buffer))  # noqa: S302  # written by the server
    pairs = (f"{encode_basestring_ascii(name)}:{encode_basestring_ascii(text)}" for name, text in found.items())
    sys.stdout.write(f"{{{','.join(pairs)}}}")
