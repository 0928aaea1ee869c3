"""Report what the server does: logs, traces, metrics, the audit log and the recent calls.

Enter at `setup`. `app` imports it, `cli` reads the audit log; no part of it changes the answer to a call.
"""
