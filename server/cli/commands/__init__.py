"""Run the commands: each file is one, or what several share.

There is no entry: the table in `parsing/commands.py` names the function of each. `main` imports it by those names;
features and `doctor` share its files.
"""
