"""One server for each module, with one account. After its tests everything it wrote is searched for their secrets."""

from collections.abc import Iterator

import pytest

from tests.server.auth.hostile.target import Target, target_site


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Target]:
    with target_site(tmp_path_factory.mktemp("target")) as made:
        yield made
        made.assert_no_secret_is_written()
        assert "Traceback" not in made.log(), made.log()
