"""The three transports, one file each: stdio, HTTP+SSE and Streamable HTTP.

Enter at a transport's file. Only `server/app/http_app.py` and the command line import them.
"""
