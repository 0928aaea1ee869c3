"""Run people's commands, files and browser at nodes (`--node`): processes that survive restarts of the server.

A server with --node is a gateway. It has no workspaces of its own:

    tool ─→ Workspace of a principal            gateway.remote_workspaces, one for each principal
              │ its methods as requests         messages: the table that both sides have
            placement                           gateway.placement: which node has the principal, in `rows`
              │
            link, one for each node             gateway.link: greets, sends, matches answers, connects again
              │ unix socket, or TLS             connect, tls
    node ←─ listener, gateway_session           node.server, node.gateway_session: one session for each gateway
              │
            LocalWorkspaces                     those of a server without nodes, and a browser

A node owns its people's files, commands and their output. A gateway owns calls: what it loses with a link it asks
again by key, so that nothing starts twice. Several gateways may use one node: each has its database's id, under which
the node knows who is gone.

`commands` are those of the command line, `checks` and `doctor` the checks, `state_part` what a state has of this,
`health` and `gauges` what is seen of nodes. Enter at `feature.NodesFeature`. Only `server/config/feature_rows.py` names
this room.
"""
