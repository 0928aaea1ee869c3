"""Parse the file of a client: JSON with comments and trailing commas, TOML or YAML."""

from pathlib import Path
from typing import Any

from toolgate.server.base.text import describe_os_error
from toolgate.server.config.files.config_file import MAX_SIZE, ConfigFileError
from toolgate.server.config.files.jsonc import ConfigSyntaxError, parse_jsonc
from toolgate.server.config.files.toml_table import parse_toml
from toolgate.tools.api.regular_file import read_regular_text


def read_client_file(path: Path) -> dict[str, Any]:
    """Return the content of a file. Raises ConfigFileError."""
    try:
        text = read_regular_text(path, MAX_SIZE).removeprefix("\ufeff")
    except OSError as error:
        raise ConfigFileError(f"can't read {describe_os_error(error)}") from None
    except UnicodeDecodeError:
        raise ConfigFileError(f"{path} is not UTF-8 text") from None
    try:
        return _parse(text, path.suffix.lower())
    except ConfigSyntaxError as error:
        raise ConfigFileError(f"{path}: {error}") from None


def _parse(text: str, suffix: str) -> dict[str, Any]:
    """Return the content in the notation that the name's end says, or else JSON or TOML."""
    if suffix == ".toml":
        return parse_toml(text)
    if suffix in (".yaml", ".yml"):
        return _parse_yaml(text)
    try:
        return parse_jsonc(text)  # type: ignore[no-any-return]  # it refuses all but objects
    except ConfigSyntaxError:
        if suffix == ".json" or text.lstrip()[:1] == "{":
            raise
    return parse_toml(text)


def _parse_yaml(text: str) -> dict[str, Any]:
    import yaml  # start-up: few clients have it

    try:
        content = yaml.safe_load(text)
    except (yaml.YAMLError, RecursionError) as error:
        raise ConfigSyntaxError(f"this is not YAML: {' '.join(str(error).split())}") from None
    if not isinstance(content, dict):
        raise ConfigSyntaxError("the file must hold a mapping")
    return content
