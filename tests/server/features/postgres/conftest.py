"""Run a test on both kinds of store, as the tests of the state do."""

from tests.server.state.conftest import each_store as each_store
