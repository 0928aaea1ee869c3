"""Attempts to get out of a sandbox, made by a hostile principal at every level, and held to what docs/security.md says.

`attempts/` is the table: what is tried, and which levels must stop it. `ground` is where: a server, a second principal,
and much that must not be reached. `running` makes the attempts, `table` is the page's summary of them.
"""
