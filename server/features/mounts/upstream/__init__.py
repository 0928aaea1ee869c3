"""Speak MCP as a client with one mounted server.

    peer        requests and answers over any wire: own ids, progress, questions, cancellation
    program, http, sse      the wires: a program's pipes, Streamable HTTP, HTTP+SSE
    http_client, http_connection      the requests of both, and the connections on which they go
    http_messages      the bytes of these requests and of their responses
    handshake   finds the era, and opens a conversation in it
    session     one conversation: the requests of calls, and what the mount tells by itself
    messages    JSON-RPC with raw values, which pass unchanged
    connect     opens a conversation over what a mount names
    envelope    what each request of the stateless era repeats
    errors      what can go wrong, each with its code

Enter at `connect`. What is heard of a mounted server is hostile.
"""
