"""Define one way to change something."""

from typing import NamedTuple


class Write(NamedTuple):
    """`script` is bash, or Python if `python` is set. It changes the tree around it ($TREE, its folder) or the folder
    outside ($OUT), or prints CHANGED. `needs` are programs; without them it is left out. `free`: without a plan and
    as root it comes off, which shows that it is one; false where that would harm the machine or depends on it.
    `dear`: it starts a program or more, and is left to `make soak`."""

    name: str
    script: str
    python: bool = False
    needs: str = ""
    free: bool = True
    dear: bool = False
