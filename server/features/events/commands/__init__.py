"""The command `toolgate events`, and what it adds to the command line."""
