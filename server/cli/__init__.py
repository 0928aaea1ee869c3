"""Read command lines and run commands: `main` dispatches, each other file is one command.

Enter at `main`. Only `__main__` imports it.
"""
