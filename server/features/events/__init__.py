"""Tell clients what happens here: MCP Events (SEP-3415), by poll, by stream and by webhook.

Enter at `feature.EventsFeature`. Only `server/config/feature_rows.py` names this room.
"""
