"""No request blocks the event loop: every route, method and tool with its worst case, against the real process."""
