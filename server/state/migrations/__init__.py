"""Migrate the state's schema, version by version, with Alembic. Only an upgrade imports it."""
