"""Serve the client's side of a tools/call: questions, progress, logs, its tasks, and what people see of their calls.

Enter at `client`; `dashboard` is for the first page. The methods import it; it imports no method and no transport.
"""
