"""Show people the mounted servers: on the first page, and on pages of their own.

    mounts_part      the part of the first page: each mount with its state, on or off for the person
    tools_page       /mounts/tools: single tools of a mount, on or off for the person
    codes_page       /mounts/codes: what each code of an error means
    people_page      /mounts/people: all people's connections, for administrators
    people_part      the part of the first page that leads there
    person_page      what those two have in common
    administrators   who may see that page
    site             makes all of these

Enter at `site.MountSite`. The templates lie beside, those of `kept_secrets` and `sign_in`, too.
"""
