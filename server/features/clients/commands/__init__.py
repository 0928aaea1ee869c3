"""Run the commands that configure clients: `toolgate install`, `toolgate uninstall` and `toolgate config`.

`table` lists them. Only the command line imports this room, by names in that table.
"""
