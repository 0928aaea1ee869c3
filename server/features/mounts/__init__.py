"""Mount other MCP servers, and serve their tools, prompts and resources beside our own.

    a client ── tools/call far__echo ──> Tool with a relay          parts/      what is shown, and of whom it is asked
                                              │
                       RequestForwarder: params, questions, errors  mount/      one mount: conversations, faults
                                              │
        SessionPool: one conversation for (person, capabilities, scopes, session)
                                              │
             UpstreamPeer: own ids and progress tokens              upstream/   MCP as a client
                                              │
    ProgramWire (a sandbox of its own) · HttpWire · SseWire ──> the mounted server

    lists/       what it lists, kept for a start
    pins/        what of it was approved; what is new or changed is held
    choices/     what each person has switched off
    pages/       what people see of them on the first page, and on pages of their own
    config/      the tables of the config file, and imports from other programs' files
    commands/    toolgate mount …
    install/     the packages of npx and uvx commands, installed into the state
    plugins/     our own plugins in processes of their own: upstream/ speaks with them, too
    assembly/    what `feature` is composed of
    mount_set    the mounts that are served; follows the config file
    openers      what opens conversations for a mount: a URL, or a command in a workspace
    names, resource_uris      what tools, prompts and resources are called here
    state_part   which of its files in the state are damaged, for doctor
    control      files by which commands and a running server know each other
    publisher    writes how they are, for those commands
    mount_events, gauges      what clients can subscribe to, and what Prometheus reads
    file_comparison   finds mounts that differ between the servers on one state

Names and lists differ between clients: `views` makes a registry for each kind of client. What a mounted server says
goes through as it came (`Output.wire`, `Relay`); it is hostile, so sizes, pages, questions and notices are bounded.

`feature` plugs it in. Only `server/config/feature_rows.py` names this room.
"""
