"""Say in events what happens: in the core's transactions, in files, and in the output and at the end of commands.

Enter at `sources.EventSources`, `watchers.EventWatchers` and `command_ends.CommandEnds`; `types` declares the types.
"""
