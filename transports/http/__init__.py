"""HTTP that both HTTP transports share: the server, sessions, streams and header checks.

Enter at `server`. It imports no transport and no page.
"""
