"""What plugs into the core by its `feature.py`: a room each. Most are on only by an option of theirs.

    FEATURES, in config/feature_rows.py       a row for each feature: names of modules, imported when they are needed
       │
       ├─ at each start ─→ OPTIONS of the row     read with those of the core; they turn the feature on
       ├─ a command of the row ─→ COMMANDS        `doctor`, `state` and `check` are named likewise
       │
       └─ when it is on ─→ its class, a Feature       app/features.py imports it and makes it
                             │
                           build      takes slots of AppHost, adds to its lists and hooks; no I/O, no part is made
                             │        App makes one AppHost, and builds all features on it in the order of the rows
                           connect    learns what the first decision needs: a secret, the greeting of nodes
                             │        App makes the server and opens the state
                           run        works beside the requests, until the end
                             │        App serves
                           the end    `run` of each is left in reverse order, also after a start that failed half-way

A command such as `doctor` builds the same host, and makes only the parts that it reads. A slot is taken once. A
feature imports the core and transports, and another feature never. Features meet at a slot (`locks`: PostgreSQL fills
it, replicas use it) or at a hook (`on.replicas_change`).

`app.features.build_host` enters here. Only `server/config/feature_rows.py` names the rooms.
"""
