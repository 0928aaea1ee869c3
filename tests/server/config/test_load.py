"""What the configuration gives to commands."""

import os

import pytest

from toolgate.server.config import load


@pytest.mark.parametrize("flags", [{}, {"http": "true"}])
def test_commands_are_told_to_write_plain_text(flags: dict[str, str]) -> None:
    """Programs colour their output and redraw it for other terminals, which a model reads as noise."""
    config = load.load(flags, {"PATH": os.environ["PATH"], "HOME": "/nowhere", "TERM": "xterm-256color"})
    assert config.command_environment["TERM"] == "dumb"
