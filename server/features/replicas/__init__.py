"""Have several servers answer as one (`--redis`): any of them takes any request, and none is missed when it dies.

Enter at `feature.ReplicasFeature`. Only `server/app/features.py` names this room.
"""
