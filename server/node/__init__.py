"""Hold people's workspaces in a process of their own, a node, and use them from another, a gateway.

Enter at `server` in the node and at `remote_workspaces` in the gateway; both read `messages`. `app` and
`cli` import it.
"""
