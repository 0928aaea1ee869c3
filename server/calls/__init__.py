"""Serve the client's side of a tools/call: questions, progress, logs, and its tasks.

Enter at `client`. The methods import it; it imports no method and no transport.
"""
