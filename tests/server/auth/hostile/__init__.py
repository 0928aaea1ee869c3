"""Requests of an attacker, in tables, against the real server process: none gets in, none gets a 5xx, and no secret
comes to stand in a log or a file."""
