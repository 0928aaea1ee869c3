"""Use the workspaces of nodes from another process, a gateway, as if they were in that process.

Enter at `remote_workspaces`; `link` is the connection to one node. `feature` and `commands` import it.
"""
