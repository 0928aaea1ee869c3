"""Ways to change something while a plan is active: each a script, in bash or Python, that must change nothing.

`runner` runs them all inside one command, `shell`, `files`, `system` are the table, `../test_planning` compares."""

from tests.escape.writes.files import FILES
from tests.escape.writes.shell import SHELL
from tests.escape.writes.system import SYSTEM
from tests.escape.writes.write import Write

WRITES: tuple[Write, ...] = (*SHELL, *FILES, *SYSTEM)
