"""Declare the options, and read them from flags, environment and config file.

Enter at `load`. No other room reads the environment.
"""
