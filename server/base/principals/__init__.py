"""Say who calls, what they may do, and how a person signs in.

Enter at `principal.Principal`; `scopes` has the rights. All rooms may import it; it imports the plugin API alone.
"""
