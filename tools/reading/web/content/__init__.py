"""Choose the content of a page: what stays of its tree, and which menus, notices and links around it are cut.

Enter at `choice.choose_content`. Two votes and other signs describe each block of the page (`blocks`, `signs`), a table
weighs them (`weights`), and a few rules correct the choice (`rules`). tools/reading/web/convert.py imports it.
"""
