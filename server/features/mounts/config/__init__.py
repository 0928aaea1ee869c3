"""Read and write the mounts of a config file.

`mount_config` has the data. `table` reads `[mounts.NAME]`.
"""
