"""Carry between the replicas of one server what must not wait for the database: keys, streams, topics and mail.

Enter at `bus`, which has the protocols; `memory_bus` is the one of a single server. It imports no other room.
"""
