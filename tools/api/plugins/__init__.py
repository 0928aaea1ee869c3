"""Find, load and reload plugins, and watch that they do not block the event loop.

Enter at `reload`. `app`, `doctor` and the mounts import it.
"""
