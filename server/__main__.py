"""Start the command `toolgate`, or `python -m toolgate.server`."""

import gc
import sys


def main() -> int:
    """Run the command line and exit with its code: 0 done, 1 fault, 2 usage."""
    gc.set_threshold(50_000, 50, 100)  # imports leave nothing to collect
    _import_msgspec_quickly()
    from toolgate.server.cli.main import run  # must follow the line above

    return run(sys.argv[1:])


def _import_msgspec_quickly() -> None:
    """Import msgspec without typing_extensions, which costs 15 ms and 5 MB and has nothing that Python 3.11 lacks."""
    if "msgspec" in sys.modules or "typing_extensions" in sys.modules:
        return
    sys.modules["typing_extensions"] = None  # type: ignore[assignment]  # an import then finds no such module
    try:
        import msgspec as msgspec
    finally:
        del sys.modules["typing_extensions"]


if __name__ == "__main__":
    sys.exit(main())
