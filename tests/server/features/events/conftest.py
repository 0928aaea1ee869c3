"""Run tests of rows on both kinds of store."""

from tests.server.state.conftest import each_store as each_store
