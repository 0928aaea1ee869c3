"""Keep the state in PostgreSQL (`--database`), so that several servers share it.

    options, secret_file, database_url      what is read of the command line and of a file
    open_store, database/                   the store
    key_table                               the keys, sealed by --secret
    audit_store, audit_log, audit_reader    the audit log as rows
    transfer                                backups: rows to a file, and back
    doctor, database_check, gauges          what is checked and measured

Enter at `feature.PostgresFeature`. Only `server/config/feature_rows.py` names this room.
"""
