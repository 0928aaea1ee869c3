"""The command line: `main` dispatches, and each other file is one command.

Enter at `main`. Nothing but `__main__` imports it.
"""
