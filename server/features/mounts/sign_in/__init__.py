"""Sign people in at mounted servers, each for themselves (`auth = "oauth"`).

    service      what the sign-ins of one server share: enter here
    flow         from our own page to the authorization server and back with a code
    tokens       the token that a request of one person carries, refreshed once for all who wait
    rejections   whether a server that rejects a new token means it
    elicitation  a question with a link for the person whose call needs a connection; the call waits
    waiting      what the calls that wait for one sign-in share
    arrivals     whether a connection is there by now, made at whichever server
    revocations  what was ended and is to be revoked, until that is done
    store        the connections in the state, sealed
    rows         the tables
    requests     what is asked of a token endpoint
    page_part    the part of the first page
    pages        the pages of a sign-in

No token that a client sent to this server goes on to anybody: what a request carries is the person's own.
"""
