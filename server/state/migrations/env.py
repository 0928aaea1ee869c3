"""Run the migrations, on the connection and in the transaction that server/state/migrate.py hands to Alembic."""

from alembic import context

from toolgate.server.state import tables

# Batches: SQLite's tables are copied where it can't change them
connection = context.config.attributes["connection"]
context.configure(connection=connection, target_metadata=tables.metadata, render_as_batch=True)
with context.begin_transaction():
    context.run_migrations()
