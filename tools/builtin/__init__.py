"""The built-in tools, a file for each subject.

Enter at any of them; only the server's `builtin_tools` imports them.
"""
