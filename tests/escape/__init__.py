"""Attempts to escape from a sandbox, made by a hostile principal at every level, and compared with docs/security.md.

`attempts/` is the table: each attempt, and the levels that must stop it. `ground` sets up a server, a second principal,
and forbidden targets. `running` makes the attempts, `table` is the page's summary of them."""
