"""Check this machine, and report what to fix (`toolgate doctor`).

Enter at `main`. Only the command line imports it.
"""
