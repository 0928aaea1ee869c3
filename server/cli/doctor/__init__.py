"""`toolgate doctor`: check this machine and a remote server, and report what to mend.

Enter at `main`. Only the command line imports it.
"""
