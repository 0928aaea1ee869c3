"""List the ways to sign in: what `--login` takes, who its people are, and which class speaks to their provider.

A new provider is a class (`IdentityProvider` of auth/login/providers.py) and a row here. Its options, its variables in
the environment, its prefix in `--allow-users` and in rules, and how its people are named are made of the row.
"""

from dataclasses import dataclass

from toolgate.server.text import escape_unprintable


@dataclass(frozen=True, slots=True)
class SignInMethod:
    """`name` is what `--login` takes, and the prefix of its people (`github:583231`) unless `people` is.

    `value`: what stands behind `--login NAME=`, "" for nothing; `issuer`: the issuer of its people, "" where the value
    is. `provider`: the class to send browsers to, as module:Class, "" for none; `title`: whose client Toolgate is then.
    """

    name: str
    value: str = ""
    issuer: str = ""
    people: str = ""
    provider: str = ""
    title: str = ""
    needs_secret: bool = False

    @property
    def prefix(self) -> str:
        return self.people or self.name

    @property
    def form(self) -> str:
        """What `--login` takes, as help writes it."""
        return f"{self.name}={self.value}" if self.value else self.name

    @property
    def client_option(self) -> str:
        """The option that names the file with the client's id and secret."""
        return f"{self.name}-client"

    @property
    def client_key(self) -> str:
        return f"{self.name}_client"

    @property
    def variables(self) -> tuple[str, str]:
        """The environment variables of the client's id and secret."""
        return f"TOOLGATE_{self.name.upper()}_ID", f"TOOLGATE_{self.name.upper()}_SECRET"


PASSWORD = SignInMethod("password", people="account")
HEADER = SignInMethod("header", "NAME", issuer="toolgate:header")
PROVIDERS = "toolgate.server.auth.login.providers"
METHODS: tuple[SignInMethod, ...] = (
    PASSWORD,
    SignInMethod("oidc", "ISSUER", provider=f"{PROVIDERS}:OpenIdProvider", title="the OIDC provider"),
    SignInMethod(
        "github", issuer="https://github.com", provider=f"{PROVIDERS}:GitHubProvider", title="GitHub", needs_secret=True
    ),
    HEADER,
)


def external_methods() -> list[SignInMethod]:
    """The methods whose people have no account here: `--allow-users` says which of them may sign in."""
    return [method for method in METHODS if not method.people]


def provider_methods() -> list[SignInMethod]:
    """The methods that send the browser to an identity provider."""
    return [method for method in METHODS if method.provider]


def login_forms() -> str:
    return ", ".join(method.form for method in METHODS)


def parse_method(word: str) -> tuple[SignInMethod, str]:
    """Return the method and the value of one `--login`. Raises ValueError."""
    name, _, value = word.partition("=")
    for method in METHODS:
        if method.name == name and bool(method.value) == bool(value):
            return method, value
    raise ValueError(f"{word!r} is none of {login_forms()}")


def format_identity(issuer: str, subject: str) -> str:
    """Return how the operator names a person without an account, in rules, `--allow-users` and commands."""
    by_value = next(method for method in METHODS if method.value and not method.issuer)
    method = next((method for method in METHODS if method.issuer == issuer and method.issuer), by_value)
    return f"{method.prefix}:{escape_unprintable(subject)}"
