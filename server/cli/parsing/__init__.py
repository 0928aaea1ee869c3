"""Read a command line: the table of commands, its options and its help.

Enter at `command_line`. `main` imports it; it imports no command.
"""
