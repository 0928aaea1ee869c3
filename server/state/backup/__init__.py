"""Write a state folder to one file, and restore it.

Enter at `write.write_backup`, `read.extract_backup` and `restore.replace_state`. Only `toolgate backup` and
`restore` import it.
"""
