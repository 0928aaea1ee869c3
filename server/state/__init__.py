"""What must survive the server: tasks, plans, callbacks, sessions, OAuth clients, grants and keys, in one database.

Enter at `store`. Everything above it imports it; it imports `protocol` alone.
"""
