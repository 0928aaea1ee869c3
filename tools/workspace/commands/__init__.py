"""Run a principal's commands within its limits: their environment, text, directory and end.

Enter at `runs.RunStore`. The workspace, the sandbox and the server's workspaces import it.
"""
