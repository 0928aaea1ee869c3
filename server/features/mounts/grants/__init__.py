"""Get tokens for mounts without a page: for this server itself, or for a person by their identity provider's word.

    granted_tokens       the token that requests carry, asked for once for all who wait: enter here
    client_credentials   for this server itself (`auth = "client_credentials"`)
    exchange             for a person (`auth = "exchange"`): RFC 8693, and ID-JAG
    identities           what a person's identity provider gave with their sign-in here
    token_endpoint       what is asked of a token endpoint, and what it answers

Tokens lie in memory alone: a server that starts asks again. No token that a client sent to this server goes on.
"""
