"""Keep the sessions of HTTP clients, and their streams with events for readers that return.

Enter at `sessions.Sessions`, whose store the host chooses: `local_store` has rows for the next process, and
`features/replicas` Redis for other servers. Requests, transports and pages import it.
"""
