"""Have several servers answer as one (`--redis`): any of them takes any request, and none is missed when it dies.

Enter at `feature.ReplicasFeature`. Only `server/config/feature_rows.py` names this room.
"""
