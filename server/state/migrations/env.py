"""What Alembic runs: the migrations, on the connection and in the transaction that it is given. Knows no database of
its own: `upgrading` opens it, and a developer's `alembic revision --autogenerate` has to be given one too."""

from alembic import context

from toolgate.server.state.tables import tables

# As batches, SQLite's tables are made anew where it can't change them
context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=tables().metadata,
    render_as_batch=True,
)
with context.begin_transaction():
    context.run_migrations()
