"""The audit log as a state has it: entries in chains that reveal changes, in files or as rows of a shared database.

entry          an entry → a line, chained to the line before, and back
chains         lines as rows of a shared database, and what chains say of each other
store          what a place of the log can do: the feature that records calls has files, PostgreSQL has rows
"""
