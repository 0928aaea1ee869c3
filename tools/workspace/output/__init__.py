"""Keep what a command writes and how it ended, and show it to a model.

Enter at `spool.Spool`, which stores runs, and `text`, which shows one. The workspace, the sandbox and the tools for
commands import it.
"""
