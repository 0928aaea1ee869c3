"""Count calls as they end, and read gauges when Prometheus scrapes.

Enter at `collector.Metrics`; `setup` imports it. No label names a person. Source: the Prometheus text format 0.0.4.
"""

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
