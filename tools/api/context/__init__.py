"""Give a running tool, prompt or resource what it needs of the server, for one call.

Enter at `context.Context`, whose services `services` defines. Every room may import it; plugins do so through
`toolgate.tools`.
"""
