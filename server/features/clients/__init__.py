"""Configure MCP clients to use this server: print what they read, or write it into their files.

    toolgate config NAME ─→ snippets.build_snippet ─→ text to paste        the first page shows the same texts
    toolgate install NAME ─→ entries.plan_install ─→ FileEdit              keeps a backup; --dry-run shows it
                               │
                             ClientSpec in `clients`     a row each: what the client reads to start or reach a server
                             FilePlace in `locations`    a row each: where the client's file is, on each platform
                             `program`                   the words that start this program, also from uvx's cache
                             `links`                     the link that opens an editor and adds the server

A client's file belongs to a person: an edit changes this server's entry alone, and `plan_uninstall` restores the file.

`commands/` has toolgate install, uninstall and config. ClientsFeature takes the slot `list_clients` for the first page.
Enter at `feature.ClientsFeature`. Only `server/config/feature_rows.py` names this room.
"""
