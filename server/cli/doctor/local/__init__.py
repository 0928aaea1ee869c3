"""What `toolgate doctor` looks at on this machine, beyond the state folder and the options: a function a row, by what
it is about. Each takes the options, changes nothing, and gives what it found; Broken is a fault, a Note may wait,
Skipped is nothing to look at.
"""
