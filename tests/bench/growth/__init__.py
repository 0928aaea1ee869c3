"""Measure how the cost of an action grows with what is there: processor time at N, 4 N and 16 N.

A row of the table is in a file of its subject, and `rows.py` lists the files.
"""
