"""What only some operators turn on. Each feature is a room, which plugs into the core by `feature.py`.

`server/app/features.py` lists them, and only it names them. A feature imports the core and transports, and another
feature never: they meet at a slot or a list of `AppHost`.
"""
