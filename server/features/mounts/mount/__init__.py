"""Hold one mounted server: who shares its conversations, and how it is.

    profile     what a client can do, as a mount is told
    pool        its conversations, opened when they are needed and ended when they are idle
    mount       all of that
    forwarded_request   one request on its way, or a task there
    parked_requests     those that wait until their client is back with an answer
    parked_elsewhere    the same where the client comes back to another replica
    call_limits     what one person may do
    continued_calls     which tries of a client go on with a call that was counted
    requests    carries one from its start to its end, with its questions
    watching    a resource that somebody is subscribed to
    backoff     how long to wait after it failed
    mount_standing      how it is, and what each principal was told of that
    pace        how long to gather changes of its lists

Enter at `mount.Mount`.
"""
