"""Decide which callers are let in, and with which scopes: OAuth 2.1 without HTTP.

Enter at `setup`. `app`, `http_app` and transports/web import it; it imports no transport and no web framework.
"""
