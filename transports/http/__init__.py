"""The parts that both HTTP transports share: the server, its endpoints and their responses.

Enter at `server`. It imports no transport and no page.
"""
