"""The built-in tools, one file per subject.

Enter at any file; only the server's `builtin_tools` imports them.
"""
