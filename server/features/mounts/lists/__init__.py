"""Keep what mounted servers list, so that a start shows it before any of them runs.

    list_store      the lists of one mount, by what a client can do; those of all lie in a file: enter here
    personal_lists  those of single people, in the state
    rows            their table

Mounts import it, and what serves their parts.
"""
