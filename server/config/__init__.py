"""The options: the table that declares them, and what flags, variables and the file say.

Enter at `load`. No other room reads the environment.
"""
