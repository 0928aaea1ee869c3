"""Replay one working session through the official client on Toolgate and two other servers, and count calls and tokens.

Enter by `measure` in measure.py. Only the benchmark imports this.
"""
