"""A principal's folder and what runs in it: files, commands, their output and their limits.

Enter at `workspace`. Tools reach processes and files through it alone.
"""
