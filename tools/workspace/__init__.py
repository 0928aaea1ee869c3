"""A principal's workspace: files, commands, their output and their limits.

Enter at `workspace`: tools reach processes and files only through it. `workspaces` are those of all principals.
"""
