"""Names that a reader can look up: a class name is unique, and no name is a bare participle, pronoun or metaphor."""

import pytest

from tests.architecture import names

# Words that are the field's own, each with the reason.
EXCEPTIONS: dict[str, str] = {}
KNOWN_TWICE = 84  # to be renamed
KNOWN_BARE = 629  # to be renamed


def test_a_public_class_name_is_unique_in_the_program() -> None:
    assert len([name for name, files in names.public_classes().items() if len(files) > 1]) <= KNOWN_TWICE


def test_no_module_class_or_function_has_a_bare_name() -> None:
    bare = [name for name in names.names() if names.is_bare(name.name) and name.name.strip("_") not in EXCEPTIONS]
    assert len(bare) <= KNOWN_BARE


def test_every_exception_is_used() -> None:
    assert EXCEPTIONS.keys() - {name.name.strip("_") for name in names.names()} == set()


@pytest.mark.parametrize("name", ["told", "_kept", "Asked", "house", "whose", "refused", "it"])
def test_a_bare_name_is_found(name: str) -> None:
    assert names.is_bare(name)


@pytest.mark.parametrize("name", ["tell_client", "TaskRow", "ProxyRequest", "feed", "read", "has_ended"])
def test_a_name_that_says_what_it_is_passes(name: str) -> None:
    assert not names.is_bare(name)
