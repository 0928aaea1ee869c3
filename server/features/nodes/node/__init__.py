"""Hold people's workspaces in a process of their own, a node, for the servers that use it, the gateways.

Enter at `server`; `../messages` is what goes between a node and a gateway. `commands.node` starts it.
"""
