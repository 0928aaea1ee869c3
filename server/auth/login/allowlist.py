"""Decide which people of external providers may sign in, by subject, verified e-mail address or domain."""

from collections.abc import Iterable

from toolgate.server.base.principals.sign_in_methods import external_methods

EVERYBODY = "*"


class UserAllowlist:
    """The entries of `--allow-users`: `*`, `@example.com` (a domain), `ada@example.com` (an e-mail address), or a
    subject such as `github:583231`, `oidc:…`, `header:…`. With one provider the prefix may be left out.

    An e-mail address counts only if its provider has verified it. Raises ValueError for an entry that admits no person,
    and for a subject without prefix if there are several `providers`.
    """

    def __init__(self, entries: Iterable[str], providers: Iterable[str]) -> None:
        names = tuple(providers)
        self._everybody = False
        self._domains: set[str] = set()
        self._emails: set[str] = set()
        self._subjects: set[tuple[str, str]] = set()
        for entry in (entry.strip() for entry in entries):
            prefix, colon, subject = entry.partition(":")
            if not names:
                raise ValueError(f"{entry!r} has no effect: accounts (--login password) need no --allow-users")
            if entry == EVERYBODY:
                self._everybody = True
            elif colon and prefix in names:
                self._subjects.add((prefix, subject))
            elif colon and any(prefix == method.prefix for method in external_methods()):
                raise ValueError(f"{entry!r} has no effect without --login {prefix}")
            elif entry.startswith("@"):
                self._domains.add(entry[1:].lower())
            elif "@" in entry:
                self._emails.add(entry.lower())
            elif len(names) == 1:
                self._subjects.add((names[0], entry))
            else:
                raise ValueError(f"{entry!r} does not name its provider: write {' or '.join(names)}:{entry}")

    def __bool__(self) -> bool:
        return bool(self._everybody or self._domains or self._emails or self._subjects)

    @property
    def needs_email(self) -> bool:
        """Return whether an entry is an e-mail address or a domain."""
        return bool(self._domains or self._emails) and not self._everybody

    def permits(self, provider: str, subject: str, email: str | None) -> bool:
        """Return whether the person may sign in; `email` is a verified address, or None."""
        return self._everybody or (provider, subject) in self._subjects or self.permits_email(email)

    def lists_email(self, email: str) -> bool:
        """Return whether this very address is listed, not only its domain."""
        return email.lower() in self._emails

    def permits_email(self, email: str | None) -> bool:
        """Return whether this verified address may sign in."""
        if not email:
            return False
        lowered = email.lower()
        return lowered in self._emails or lowered.rpartition("@")[2] in self._domains
