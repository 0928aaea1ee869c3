"""Make, read and check the certificates of nodes and gateways at HOST:PORT.

Enter at `certificate_file`; `toolgate node certificate` enters at `authority`. `connect` and `commands` import it.
"""
