"""Run people's commands, files and browser at nodes (`--node`): processes that survive restarts of the server.

Enter at `feature.NodesFeature`. Only `server/app/features.py` names this room.
"""
