"""Send an attacker's requests to the real server process: none succeeds, none gets a 5xx, and no secret reaches a log
or a file."""
