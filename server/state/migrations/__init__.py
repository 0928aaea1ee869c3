"""The state's schema, version by version, as Alembic migrates it. Only an upgrade loads any of this."""
