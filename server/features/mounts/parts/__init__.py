"""Show what mounted servers have as parts of ours.

    relays      a tool, prompt, resource or template that is asked at its mount
    rewriting   URIs that two mounts claim
    create      makes parts of what a mounted server lists
    views       what each client is shown, and when it is known
    reduced_registries   what is kept of what people are shown who have switched something off
    own_registries       what each principal may be shown of what is listed for single people
    withheld    what is listed and not served, for those who ask for it by name
    client_sessions      whose clients have left without a word

Enter at `views.MountViews`.
"""
