"""Make what the feature is composed of, at its first use where few servers need it.

    sign_ins     sign-ins at mounts, and what identity providers gave: pages, tokens, waits and their end
    choices      what people have switched off, shared with other servers and processes
    own_secrets  what people set on the first page, and what follows at each server
    sharing      what a person has changed, told to other servers and taken from them
    pins         what was approved: read before it counts, and again
    mounts       one mount with its store, gate, opener, tokens and parts

Only `feature` imports it.
"""
