"""Decide which people of external providers may sign in: by subject, verified e-mail address or its domain."""

from collections.abc import Iterable

from toolgate.server.policy.sign_in_methods import external_methods

EVERYBODY = "*"


class UserAllowlist:
    """From `--allow-users`: `*`, `@example.com` (a domain), `ada@example.com` (an e-mail address), or a subject, as
    `github:583231`, `oidc:…`, `header:…`; the prefix may be left out where there is one provider only.

    An e-mail address counts only when its provider has verified it. Raises ValueError for an entry that admits no
    person, and for a subject without its provider where `providers` are several: another has it elsewhere.
    """

    def __init__(self, entries: Iterable[str], providers: Iterable[str]) -> None:
        known = tuple(providers)
        self._everybody = False
        self._domains: set[str] = set()
        self._emails: set[str] = set()
        self._subjects: set[tuple[str, str]] = set()
        for entry in (entry.strip() for entry in entries):
            prefix, colon, subject = entry.partition(":")
            if not known:
                raise ValueError(f"{entry!r} lets nobody in: accounts (--login password) need no --allow-users")
            if entry == EVERYBODY:
                self._everybody = True
            elif colon and prefix in known:
                self._subjects.add((prefix, subject))
            elif colon and any(prefix == method.prefix for method in external_methods()):
                raise ValueError(f"{entry!r} lets nobody in: --login has no {prefix}")
            elif entry.startswith("@"):
                self._domains.add(entry[1:].lower())
            elif "@" in entry:
                self._emails.add(entry.lower())
            elif len(known) == 1:
                self._subjects.add((known[0], entry))
            else:
                raise ValueError(f"{entry!r} does not say whose subject it is: write {' or '.join(known)}:{entry}")

    def __bool__(self) -> bool:
        return bool(self._everybody or self._domains or self._emails or self._subjects)

    @property
    def needs_email(self) -> bool:
        """Whether an e-mail address can decide."""
        return bool(self._domains or self._emails) and not self._everybody

    def permits(self, provider: str, subject: str, email: str | None) -> bool:
        """`email` is a verified one, or None."""
        return self._everybody or (provider, subject) in self._subjects or self.permits_email(email)

    def lists_email(self, email: str) -> bool:
        """Whether this very address is among them, and not its domain alone."""
        return email.lower() in self._emails

    def permits_email(self, email: str | None) -> bool:
        """Whether this address, a verified one, admits its owner."""
        if not email:
            return False
        lowered = email.lower()
        return lowered in self._emails or lowered.rpartition("@")[2] in self._domains
