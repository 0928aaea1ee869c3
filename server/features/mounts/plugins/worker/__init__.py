"""Serve one plugin as an MCP server over standard input and output, in a process of its own.

    __main__     the program: streams, log, guard
    reaper       ends what the plugin started, and the process with the server
    server       the methods, and how a call of a part runs
    listing      how parts are listed
    link         what the process tells and requests of the server
    context      the Context of a call

`process` on the server's side mounts it. Nothing imports this room.
"""
