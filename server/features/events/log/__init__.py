"""Keep what happened to each principal in a log, in order and within limits, for readers that come back.

Enter at `log.EventLog`. All of events imports this room.
"""
