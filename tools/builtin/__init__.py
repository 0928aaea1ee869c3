"""The built-in tools, one file per subject.

Enter at any file; only the server's `builtin_tools` imports them. `shell` has the tools that run commands, and
`shell_result` writes what Bash tells the model of a command's end.
"""
