"""Write for a person at a terminal, and ask one: colours, tables, the banner and a choice of clients.

There is no entry: each file is a subject. Every room of the command line imports it.
"""
