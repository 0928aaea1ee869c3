"""Get tokens for mounts without a page: for this server itself.

    granted_tokens       the token that requests carry, asked for once for all who wait: enter here
    client_credentials   for this server itself (`auth = "client_credentials"`)
    token_endpoint       what is asked of a token endpoint, and what it answers

Tokens lie in memory alone: a server that starts asks again. No token that a client sent to this server goes on.
"""
