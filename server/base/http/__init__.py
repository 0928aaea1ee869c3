"""Read and write HTTP/1.1 at either end of a connection: heads, chunks and event streams, however hostile.

The server's connections, the mounts and the command line's client import it; it imports nothing of the program.
"""
