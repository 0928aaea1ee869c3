"""Hold what a mounted server lists to what was approved: what is new or changed is served after a review.

    definitions   names each form of a tool, prompt, template, view and of the instructions by a digest
    gate          decides what of a mount's lists is served: the one function that all doors ask
    book          the standings of all mounts in memory, and their writes to the state
    rows          the tables
    marks         what a person should look at twice: invisible characters, names of other tools
    difference    what has changed, for a person; its lines are matched by line_matching
    outlines      what is kept of a form that is too large

Enter at `gate.PinGate`. A pin names what a server says, never the code that it runs.
"""
