"""Read command lines and run commands: `main` dispatches.

Enter at `main`. Only `__main__` imports it.
"""
