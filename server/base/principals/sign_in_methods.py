"""List the ways to sign in: the values of `--login`, the issuer of its people, and the class for the provider.

A new provider is a class (`IdentityProvider` of auth/login/providers.py) and a row here. Its options, environment
variables, prefix in `--allow-users` and rules, and the names of its people all come from the row.
"""

import msgspec

from toolgate.server.base.text import escape_unprintable, suggest


class SignInMethod(msgspec.Struct, frozen=True):
    """A row. `name` is the value of `--login`, and the prefix of its people (`github:583231`) unless `people` is set.

    `value`: what follows `--login NAME=`, "" for nothing. `issuer`: of its people; oidc alone has it as its value.
    `provider`: the class for the provider, as module:Class, or "". `title`: the provider's name for people.
    """

    name: str
    value: str = ""
    issuer: str = ""
    people: str = ""
    provider: str = ""
    title: str = ""
    needs_secret: bool = False

    def __post_init__(self) -> None:
        if not self.issuer and not self.people and self.name != "oidc":
            raise TypeError(f"sign-in method {self.name} needs `issuer`: without one its people would be named oidc:")

    @property
    def prefix(self) -> str:
        return self.people or self.name

    @property
    def form(self) -> str:
        """Return the value of `--login`, as help shows it."""
        return f"{self.name}={self.value}" if self.value else self.name

    @property
    def client_option(self) -> str:
        """Return the option for the file with the client's id and secret."""
        return f"{self.name}-client"

    @property
    def client_key(self) -> str:
        return f"{self.name}_client"

    @property
    def variables(self) -> tuple[str, str]:
        """Return the environment variables for the client's id and secret."""
        return f"TOOLGATE_{self.name.upper()}_ID", f"TOOLGATE_{self.name.upper()}_SECRET"


PROVIDERS = "toolgate.server.auth.login.providers"
PASSWORD = SignInMethod("password", people="account")
OIDC = SignInMethod("oidc", "ISSUER", provider=f"{PROVIDERS}:OpenIdProvider", title="the OIDC provider")
GITHUB = SignInMethod(
    "github", issuer="https://github.com", provider=f"{PROVIDERS}:GitHubProvider", title="GitHub", needs_secret=True
)
HEADER = SignInMethod("header", "NAME", issuer="toolgate:header")
KNOWN_ISSUERS = {  # providers that people name, and their issuers
    "google": "https://accounts.google.com",
    "gitlab": "https://gitlab.com",
    "microsoft": "https://login.microsoftonline.com/TENANT/v2.0",
    "azure": "https://login.microsoftonline.com/TENANT/v2.0",
    "entra": "https://login.microsoftonline.com/TENANT/v2.0",
    "okta": "https://YOURS.okta.com",
    "auth0": "https://YOURS.auth0.com/",
    "keycloak": "https://HOST/realms/REALM",
}
SIGN_IN_METHODS: tuple[SignInMethod, ...] = (PASSWORD, OIDC, GITHUB, HEADER)


def external_methods() -> list[SignInMethod]:
    """Return the methods without accounts here: `--allow-users` lists who may sign in by them."""
    return [method for method in SIGN_IN_METHODS if not method.people]


def provider_methods() -> list[SignInMethod]:
    """Return the methods that send the browser to an identity provider."""
    return [method for method in SIGN_IN_METHODS if method.provider]


def login_forms() -> str:
    return ", ".join(method.form for method in SIGN_IN_METHODS)


def parse_method(word: str) -> tuple[SignInMethod, str]:
    """Return the method and the value of one `--login`. Raises ValueError."""
    name, _, value = word.partition("=")
    for method in SIGN_IN_METHODS:
        if method.name == name and bool(method.value) == bool(value):
            return method, value
    names = [method.name for method in SIGN_IN_METHODS]
    if issuer := KNOWN_ISSUERS.get(word.lower()):
        raise ValueError(f"must be one of {login_forms()}, not {word!r}: write oidc={issuer}")
    raise ValueError(f"must be one of {login_forms()}, not {word!r}{'' if name in names else suggest(name, names)}")


def format_identity(issuer: str, subject: str) -> str:
    """Return a person without an account as rules, `--allow-users` and commands write it."""
    method = next((method for method in SIGN_IN_METHODS if method.issuer == issuer != ""), OIDC)
    return f"{method.prefix}:{escape_unprintable(subject)}"
