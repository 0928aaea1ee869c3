"""Write for a person at a terminal: colours, tables and the banner.

There is no entry: each file is a subject. Every room of the command line imports it.
"""
