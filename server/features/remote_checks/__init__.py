"""Check a server as a hosted client sees it (`toolgate doctor --url`).

    commands     adds --url to toolgate doctor, and runs the checks
    checks       the checks in order, each with those that it depends on
    connection, sign_in, calls      the way to the server, signing in, and calls with a token
    target       the server that is checked, and what is known of it so far

Enter at `checks.remote_checks`. Only `server/config/feature_rows.py` names this room.
"""
