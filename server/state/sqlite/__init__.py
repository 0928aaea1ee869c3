"""Keep the state in an SQLite file: open, copy and upgrade it, and run transactions on it.

Enter at `store.SqliteStore`. The host opens it; `doctor` and the backup read files with `database`.
"""
