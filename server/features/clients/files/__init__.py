"""Add an entry to a client's own file, and remove it, with all else in the file as it was.

Enter at `install.plan_install`. Only the commands of clients import it, and `snippets` the notation of TOML.
"""
