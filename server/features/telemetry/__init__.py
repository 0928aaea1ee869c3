"""Observe calls: the audit log, metrics over HTTP, and traces where a collector is configured.

    feature        plugs it in: observers of each call, `/metrics`, spans around methods
    audit/         a call → a line in files, or in rows where PostgreSQL offers them
    metrics/       counts of calls, and gauges that are read at each scrape
    traces         spans, as OpenTelemetry's variables say
    commands/, doctor, state_part      `toolgate audit`, its check, and its files in backups

No part of it changes the answer to a call.
"""
