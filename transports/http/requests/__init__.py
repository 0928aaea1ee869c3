"""Read what a request over HTTP asks: who calls, from where, and with which body.

Enter at `post`, which replies to a POST of Streamable HTTP. Transports and pages import it; it imports `sessions`.
"""
