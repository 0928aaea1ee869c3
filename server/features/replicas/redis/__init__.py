"""Implement the bus of several replicas on Redis or Valkey: one connection for commands, one for what arrives.

Enter at `redis_bus`; `connection` alone imports the client library. Only `open_bus` imports it, with `--redis`.
"""
