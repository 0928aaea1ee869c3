"""Share the sessions of Streamable HTTP between replicas: their records, streams, messages and limits.

Enter at `shared_sessions`. Only `server/app/http_app.py` imports it, with `--redis`.
"""
