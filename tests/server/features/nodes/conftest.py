"""Two nodes that the tests of several share."""

import contextlib
from collections.abc import Iterator

import pytest

from tests.server.features.nodes.nodes import NodeProcess, running_node


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[NodeProcess]]:
    folder = tmp_path_factory.mktemp("nodes")
    with contextlib.ExitStack() as stack:
        names = ("attic", "cellar")
        yield [stack.enter_context(running_node(folder / name, "--sandbox", "none", "--name", name)) for name in names]
