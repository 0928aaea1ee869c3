"""Give each principal a workspace and a sandbox, and archive or remove the workspaces of people who left.

Enter at `local_workspaces.LocalWorkspaces` and `sandboxing.Sandboxing`. `app` and the command line import it.
"""
