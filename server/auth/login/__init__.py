"""Sign people in: accounts, identity providers, trusted proxies and pairing codes.

Enter at `methods`. The pages and the authorization server import it; it imports no page.
"""
