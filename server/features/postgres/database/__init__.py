"""Run transactions on PostgreSQL, watch it, and tell by its locks which servers live.

Enter at `store.PostgresStore`. `driver` alone imports asyncpg. Only `server/features/postgres` imports it.
"""
