"""Decide which calls may run: rules, command patterns, remembered approvals and nonces.

Enter at `call_policy`. The methods, the pages and `app` import it; it imports no method.
"""
