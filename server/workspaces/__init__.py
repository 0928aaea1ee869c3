"""Give each principal a workspace and a sandbox, and archive or remove the workspaces of people who left.

Enter by workspaces.Workspaces and sandboxing.Sandboxing; retention.WorkspaceCleaner runs beside the server.
"""
