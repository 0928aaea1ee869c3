"""Reach files safely: no link, device or size that hostile contents may have leads astray.

Enter at `access`. The rooms of the workspace import it, and who reads the files of a person or of the state.
"""
