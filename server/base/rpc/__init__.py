"""Request methods of objects from another process: frames on a socket, errors, the table of methods, and room.

Enter at `methods` and `frames`. The features `nodes` and `mounts` import it.
"""
