"""The command `toolgate`, and `python -m toolgate.server`."""

import sys


def main() -> int:
    """Run the command line; the exit code is 0 done, 1 fault, 2 usage."""
    _import_msgspec_quickly()
    from toolgate.server.cli.main import run  # after the line above, which is the point of it

    return run(sys.argv[1:])


def _import_msgspec_quickly() -> None:
    """msgspec prefers typing_extensions, where it is installed, for what typing has since Python 3.11. That
    module costs 15 ms and 5 MB, so it is out of sight for as long as msgspec is imported."""
    if "msgspec" in sys.modules or "typing_extensions" in sys.modules:
        return
    sys.modules["typing_extensions"] = None  # type: ignore[assignment]  # what import takes for "not there"
    try:
        import msgspec as msgspec
    finally:
        del sys.modules["typing_extensions"]


if __name__ == "__main__":
    sys.exit(main())
