"""Read the mounts of a config file.

    mount_config            what the file says of one mount
    table, values           [mounts.NAME], and what each key may hold
    placeholders            ${env:NAME} in env and headers
    faults                  why a mount is not served

Enter at `table.read_own_mounts`.
"""
