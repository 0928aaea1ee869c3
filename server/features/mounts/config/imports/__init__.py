"""Read the MCP servers in the files of other clients as mounts.

    notation                JSON with comments, TOML and YAML
    shapes/                 where each client has its servers, and its keys: a file each
    foreign_server          one server with the keys of our own file, and what was not taken over
    placeholders, naming    their variables and names, as ours
    plan                    the mounts, with what their person has to know

Enter at `plan.plan_import`. Only `toolgate mount import` uses it.
"""
