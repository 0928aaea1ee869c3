"""Read what the first page shows of a person's work.

Enter at `dashboard.Dashboard`. The pages of `transports/web` import it, and `app` builds it.
"""
