"""Skills: find, parse and serve them as a tool and as resources.

Enter at `skills`. `builtin_tools` and `doctor` import it.
"""
