"""Keeps the commands of one principal apart from the machine and from each other's: `bwrap`, `uid` or `none`.

    server ── entry ── bwrap ── (pid 1) ── zygote ──┬── supervisor ── the command ── whatever it starts
                                                    └── …

A principal has one sandbox, a Cell, for as long as it is in use: its commands see each other's processes, ports and
/tmp, as on a machine of their own, and nothing else's. `levels` chooses, `view` says what is seen, `syscalls` what the
kernel refuses, `entry` is the program that goes in.
"""
