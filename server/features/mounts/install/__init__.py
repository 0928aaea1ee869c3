"""Install the program of a mount whose command is `npx` or `uvx`, so that nothing is downloaded at a call.

    package_command      what such a command names: packages, a program of theirs, and its arguments
    npm, uv      install the packages into a folder, and find the program there
    installer    runs the package manager
    installation      what was installed for a mount, for whoever installs it and whoever starts it

    STATE/mounts/NAME/installed.json      what was installed, and where
    STATE/mounts/NAME/DIGEST/             the packages

Only commands of the machine install; a server starts what is there. The folders are readable for all users of the
machine, since the sandboxes of people show them.

Enter at `installation.stage_program` and `installation.find_argv`.
"""
