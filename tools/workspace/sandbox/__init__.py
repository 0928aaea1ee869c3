"""Sandbox the commands of a principal: `bwrap`, `uid` or `none`.

    server ── enter ── bwrap ── (pid 1) ── zygote ──┬── supervisor ── the command ── whatever it starts
                                                    └── …

A principal has one sandbox while it is in use. Its commands see each other's processes, ports and /tmp, and nothing of
other principals. Enter at `levels`, which chooses the level; `environment` sets a sandbox up.
`cgroups` limits what a principal runs, and `egress` is the way to the network.
"""
