"""Keep the state in PostgreSQL (`--database`), so that several servers share it.

    PostgresFeature ─→ store        PostgresStore: transactions with a deadline, locks by subject     database/
                   ├─→ keys         KeyTable: the keys as rows, sealed with the secret of --secret
                   ├─→ audit_rows   AuditRowStore: DatabaseLog writes the audit log, OwnRows reads it
                   ├─→ locks        ReplicaLock: a lock that ends with its process; replicas use it
                   └─→ transfer     PostgresTransfer: rows to a backup, and back

The middle column has slots of the host. PostgresMonitor asks the database each second whether it answers, over a
connection of its own: `/ready` and the metrics (`gauges`) say so. While it is away, each use raises StateError within
its deadline.

    options, secret_file, database_url      read the command line and the files that it names
    open_store                              opens store and keys, for the server and for commands
    doctor, database_check                  `toolgate doctor`: what the database is, and whether its settings fit

Enter at `feature.PostgresFeature`. Only `server/config/feature_rows.py` names this room.
"""
