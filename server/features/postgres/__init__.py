"""Keep the state in PostgreSQL (`--database`), so that several servers share it.

Enter at `feature.PostgresFeature`. Only `server/config/feature_rows.py` names this room.
"""
