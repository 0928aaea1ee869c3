"""Send requests to public addresses alone: every request of tools, webhooks, mounts and sign-in leaves here.

Enter at `fetch`. Every room that sends one may import it; the proxies of browsers and sandboxes vet addresses by it.
"""
