"""Configure MCP clients to use this server: print what they read, or write it into their files.

    clients, locations    each client, and where its file is          a row each
    links, program        the link that adds the server, and the program that a client starts
    snippets              what a client reads, as text to paste       the commands and the first page show it
    entries               the entry of this server in clients' files
    commands/             toolgate install, uninstall and config

Enter at `snippets.build_snippet`, `entries.plan_install` and `feature.ClientsFeature`. Only
`server/config/feature_rows.py` names this room.
"""
