"""Observe calls: the audit log, metrics over HTTP, and traces where a collector is configured.

    tools/call ─→ Observers ─┬─→ AuditRecorder ─→ AuditLog     audit/: a line in files, or rows of PostgreSQL
                             └─→ CallMetrics                   metrics/: counts and times of calls
    any method ─→ slot `trace` ─→ Traces                       a span, as OpenTelemetry's variables say
    GET /metrics ─→ Metrics                                    the counts, and gauges that are read at each scrape

TelemetryFeature imports the parts that are on. At the end it closes the audit log after the last call, then flushes
the traces. No part of it changes the answer to a call.

    commands/      toolgate audit
    doctor         checks the newest part of the log
    state_part     its files in backups

Enter at `feature.TelemetryFeature`. Only `server/config/feature_rows.py` names this room.
"""
