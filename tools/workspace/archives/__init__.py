"""Pack a folder with hostile contents into one file, and unpack it.

Enter at `archive` and `unarchive`. Backups, moves between nodes and the removal of workspaces use it.
"""
