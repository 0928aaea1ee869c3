"""Bring events to clients: on streams that stay open, and to subscriptions by webhook, also over several replicas.

Enter at `streams.EventStreams` and `subscriptions.EventSubscriptions`, which read the log.
"""
