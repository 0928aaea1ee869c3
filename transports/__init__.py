"""The three transports, a file each: stdio, HTTP+SSE and Streamable HTTP.

Enter at the file of a transport. Only `server/http_app.py` and the command line import them.
"""
