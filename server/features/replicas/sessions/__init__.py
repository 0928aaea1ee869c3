"""Share the HTTP sessions of replicas: their records, streams and the messages that were sent to another one.

Enter at `opener.SharedSessionOpener`. `feature` imports it.
"""
