"""What the server reports of itself: logs, traces, metrics, the audit log and the recent calls.

Enter at `setup`. No part of it changes the answer to a call.
"""
