"""Tell clients what happens here: MCP Events (SEP-3415), by poll, by stream and by webhook.

Enter at `EventLog` to record what happened, and at `server/methods/events.py` for the methods. `app` wires it up.
"""
