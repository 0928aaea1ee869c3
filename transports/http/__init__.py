"""The parts that both HTTP transports share: server, sessions, streams and header checks.

Enter at `server`. It imports no transport and no page.
"""
