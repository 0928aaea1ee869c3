"""Run a plugin in its own process, and talk to it over a socket.

Enter at `plugin` on the server's side and at `worker` in the process.
"""
