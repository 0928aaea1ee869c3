"""Run people's commands, files and browser at nodes (`--node`): processes that survive restarts of the server.

Enter at `feature.NodesFeature`. Only `server/config/feature_rows.py` names this room.
"""
