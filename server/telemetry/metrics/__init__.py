"""Counts calls as they end, and reads gauges when Prometheus scrapes.

Enter at `collector.Metrics`. No label names a person. Source: the Prometheus text format 0.0.4.
"""

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
