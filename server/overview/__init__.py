"""Read what the first page shows of a person's work, and whether the server is healthy.

Enter at `dashboard.Dashboard`. The pages of `transports/web` import it, and `app` builds it.
"""
