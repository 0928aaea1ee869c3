"""Report what the server does: traces, metrics and the audit log.

Enter at `setup`. `app` imports it, `cli` reads the audit log; no part of it changes the answer to a call.
"""
