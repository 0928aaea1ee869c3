"""Put a server together, run it and take it down.

Enter at `app.App`; `build` makes the parts that need several lines, and `http_app` what is served over HTTP. Only `cli`
imports this room.
"""
