"""Check that a server starts with options, before a client's file gets them: start one, greet it and end it."""

import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import msgspec

from toolgate.server.base.errors import UsageError
from toolgate.server.cli.mcp_client.client import initialize_params
from toolgate.server.config.load import Config

WITHIN = 60.0  # seconds; a start takes less than one, and plugins may take some
PREFIX = "toolgate: "  # of the line with which a refused start ends
INITIALIZE = msgspec.json.encode(
    {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": initialize_params("2025-11-25", can_answer=False)}
)


def check_start(command: str, config: Config, flags: Sequence[str], *, keeps_state: bool) -> None:
    """Raise UsageError with the server's own words if it does not start with these flags and the person's config file.

    A server makes its state folder at the first start. Without `keeps_state`, a missing one stays missing.
    """
    with tempfile.TemporaryDirectory(prefix="toolgate-") as folder:
        is_new = not (keeps_state or Path(config.state).exists())
        program = [sys.executable, "-P", "-m", "toolgate.server", *flags, *(["--state", folder] if is_new else [])]
        try:
            ran = subprocess.run(
                program,
                input=INITIALIZE + b"\n",
                capture_output=True,
                env=config.own_environment,
                timeout=WITHIN,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise UsageError(
                f"{command}: a server with these options did not start within {WITHIN:.0f} seconds"
            ) from None
    if ran.returncode:
        said = ran.stderr.decode(errors="replace").strip()
        reason = said[said.rfind(PREFIX) :].removeprefix(PREFIX) or f"it ended with {ran.returncode}"
        raise UsageError(f"{command}: a server with these options does not start: {reason}")
