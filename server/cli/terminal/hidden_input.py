"""Read what a person types at a terminal without showing it."""

import signal

from toolgate.tools.api.errors import ToolError


def prompt_hidden(prompt: str, noun: str) -> str:
    """Return a line. `noun` names it in an error. Raises ToolError."""
    import getpass  # start-up

    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # the loop's would wait for the end of the line
    try:
        return getpass.getpass(prompt)
    except EOFError:
        raise ToolError(f"no {noun} was given") from None
    except UnicodeDecodeError:
        raise ToolError(f"a {noun} must be valid UTF-8") from None
    finally:
        signal.signal(signal.SIGINT, before)
