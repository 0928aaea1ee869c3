"""Check this machine and a remote server, and report what to fix (`toolgate doctor`).

Enter at `main`. Only the command line imports it.
"""
