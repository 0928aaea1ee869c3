"""Open, walk and remove files safely in folders with hostile contents.

Enter at `access`. The rooms of the workspace, the tools for files and the state import it.
"""
