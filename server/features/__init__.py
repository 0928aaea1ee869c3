"""What plugs into the core by its `feature.py`: a room each. Most are on only by an option of theirs.

    config/feature_rows   one row a feature: its options, its checks, its class         imported at each start
    app/features          builds the features that are on, on one AppHost               imports a class by its name
    <feature>/feature     build: take slots, add to lists and hooks
                          connect: learn what the first decision needs
                          run: work beside the requests

The server builds the host, connects the features in order, makes its parts, and enters `run` of each in order; it
leaves them in reverse, also after a start that failed half-way. A command such as `doctor` builds the same host and
makes only the parts that it reads. A slot is taken once. A feature imports the core and transports, and another feature
never: they meet at a slot (`locks`: PostgreSQL fills it, replicas use it) or at a hook (`on.replicas_change`).
"""
