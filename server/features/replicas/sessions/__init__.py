"""Share the HTTP sessions of replicas: their records, streams and the messages that were sent to another one.

A record ends by Redis' own clock, 30 minutes after its last use: `IDLE` in `transports/http/sessions/sessions.py`, for
sessions in memory, too. `redis_store` touches it each minute (`TOUCH`) while work or a reader is here. Eviction from a
replica's memory leaves it.
`resumed_streams` goes on with a stream that another replica began.

Enter at `opener.SharedSessionOpener`. `feature` imports it.
"""
