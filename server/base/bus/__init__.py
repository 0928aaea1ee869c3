"""Carry between the replicas of one server what must not wait for the database: keys, streams, topics and mail.

Enter at `open_bus`; `bus` has the protocols. It imports no other room, and any room above it may import it.
"""
