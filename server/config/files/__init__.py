"""Edit configuration files as text, in JSON and TOML, with all else in the file as it was.

`config_file` reads and replaces a file, `jsonc` and `toml_table` edit a text. Commands alone import it.
"""
