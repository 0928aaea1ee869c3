"""Keep the secrets that mounts name as `${secret:NAME}`: each person's own, and the team's for everybody.

Enter at `secret_store.SecretStore`. `resolver` fills them into the
configuration of one mount.
"""
