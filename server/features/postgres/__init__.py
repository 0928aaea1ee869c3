"""Keep the state in PostgreSQL (`--database`), so that several servers share it.

Enter at `feature.PostgresFeature`. Only `server/app/features.py` names this room.
"""
