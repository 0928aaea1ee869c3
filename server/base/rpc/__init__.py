"""Request methods of objects from another process: frames on a socket, errors, and the table of methods.

Enter at `methods` and `frames`. The features `nodes` and `mounts` import it.
"""
