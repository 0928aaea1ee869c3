"""Sandbox the commands of a principal: `bwrap`, `uid` or `none`.

    server ── enter ── bwrap ── (pid 1) ── zygote ──┬── supervisor ── the command ── whatever it starts
                                                    └── …

A principal has one sandbox for as long as it is in use: its commands see each other's processes, ports and
/tmp, as on a machine of their own, and nothing else's. Enter at `levels`, which chooses
the level; `environment` sets a sandbox up.
"""
