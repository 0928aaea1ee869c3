"""Mount plugins that run in processes of their own: each is a server over our own stdio, which serves its plugin alone.

    RemoteTool.run ──> IsolatedPlugin.call ──> PluginProcess.begin       parts, plugin, process
                                                      │
                                 UpstreamSession, UpstreamPeer, ProgramWire      ../upstream, as of any program
                                                      │
                        `python -m …plugins.worker FILE`                 program starts it; worker/ is what runs there
                                                      │
                PluginServer ──> the part ──> RemotePeer, RemoteObject   worker/server, worker/context
                                                      │
    PluginCall <── toolgate/context ──────────────────┘                  calls: what the plugin requests of the server

    data         what both ends send, and the names of methods that MCP does not have
    api          the methods of a Context that the process may request

A part is named, scoped and held to plans as the plugin declares it, and a call runs for its caller: `_meta` has the
data of its Context. What that can't hold the process requests, by `toolgate/context`, for a call that is under way.

Enter at `loader`. `FeatureRow.isolation` names it.
"""
