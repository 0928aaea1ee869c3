"""Tell clients what happens here: MCP Events (SEP-3415), by poll, by stream and by webhook.

It is always on, and costs a stat where nobody waits. An event goes from its source to a client like this:

    core ─→ hook of AppHost ─→ feature            on.firing, on.todo_change …: in the transaction of what happens
    files, output, ends of commands ─→ sources/   a watcher for each filter, while somebody waits
                                 │
                  EventLog.record │ emit          log/: an id for each occurrence, so that a repeat is the same event
                                 │                a record is in the core's transaction; log.writer stores what is
                                 │                emitted, and leaves a gap for what it loses
                            rows of the log       log.rows: in order, within count, size and age of each principal
                                 │ news           in this process; delivery.shared_events tells the other replicas
             ┌───────────────────┼────────────────────────┐
       events/poll         events/stream          webhooks of subscriptions
       methods             delivery.streams       delivery.subscriptions: who subscribed, until when
       a page from         a page at a time,      delivery.outbox: rows of what to deliver, and how it went
       a cursor            while it is read       webhooks/: sign, post, retry, and give each receiver its turn

A reader that comes back names a cursor, which only this server can make (log.cursors). It is told of a gap where a
limit dropped what it had not read. The log owns events, and who waits for them. A stream owns its position, and a
subscription its deliveries. Of several replicas one delivers for a subscription, chosen by rank among the living. A
grant that ends takes its streams and subscriptions along: `EventsFeature` is a `GrantHolder`.

`commands` are those of the command line, `doctor` and `state_part` the checks, `page` and `gauges` what is seen of it.
Enter at `feature.EventsFeature`. Only `server/config/feature_rows.py` names this room.
"""
