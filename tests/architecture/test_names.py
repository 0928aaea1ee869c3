"""Check names: a class name is unique, and no name is a bare participle, pronoun or metaphor."""

import pytest

from tests.architecture import names
from tests.needed_features import list_deleted

EXCEPTIONS = {  # words that are the field's own, each with the reason
    "zed": "the name of an editor",
    "Elicited": "the plugin API: what `ctx.elicit` returns",
    "updated": "the plugin API: `ctx.updated(uri)`",
}


def test_a_public_class_name_is_unique_in_the_program() -> None:
    assert {name: files for name, files in names.public_classes().items() if len(files) > 1} == {}


def test_no_module_class_or_function_has_a_bare_name() -> None:
    bare = [name for name in names.names() if names.is_bare(name.name) and name.name not in EXCEPTIONS]
    assert [str(name) for name in bare] == []


def test_every_exception_is_used() -> None:
    of_deleted = {"zed"} if "clients" in list_deleted() else set()
    assert EXCEPTIONS.keys() - {name.name for name in names.names()} == of_deleted


@pytest.mark.parametrize("name", ["told", "_kept", "Asked", "house", "whose", "refused", "it"])
def test_a_bare_name_is_found(name: str) -> None:
    assert names.is_bare(name)


@pytest.mark.parametrize("name", ["tell_client", "TaskRow", "ProxyRequest", "feed", "read", "has_ended"])
def test_a_name_that_says_what_it_is_passes(name: str) -> None:
    assert not names.is_bare(name)
