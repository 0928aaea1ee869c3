"""Skills: find and parse them, and serve them as a tool and as resources.

Enter at `skills`; the server's `builtin_tools` and `doctor` import it.
"""
