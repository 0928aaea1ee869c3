"""Keep the sessions of HTTP clients, and their streams with events for readers that return.

Enter at `sessions.Sessions` and `event_stream.EventStream`. Requests, transports and pages import it.
"""
