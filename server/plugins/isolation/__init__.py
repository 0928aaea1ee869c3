"""Run a plugin in a process of its own, and speak with it over a socket.

Enter at `plugin` on the server's side and at `worker` in the process.
"""
