"""Read and write what the state keeps, a file a subject: people, clients, grants, tasks, sessions and callbacks.

There is no entry: each file has functions that run inside a transaction, or a store of its subject. The server's rooms
import them; they import no other room of the state but SQLite's.
"""
