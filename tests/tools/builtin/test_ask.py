"""AskUserQuestion: its input, its form, and its answers."""

import json
from pathlib import Path
from typing import Any

import jsonschema_rs
import msgspec
import pytest

from tests.tools.fake_context import FakeServices, Person, data, refused, run, said
from toolgate.tools.api.errors import UnansweredError
from toolgate.tools.builtin import ask
from toolgate.tools.builtin.ask import ask_user_question, parse_questions

SPEC = Path(__file__).parents[2] / "spec"
MULTI = frozenset({"multi_select"})

DATABASE = {
    "question": "Which database?",
    "header": "Database",
    "options": ["SQLite", {"label": "PostgreSQL", "description": "needs a server"}],
}
CHECKS = {"text": "Which checks?", "options": ["lint", "types", "tests"], "multiSelect": True}


def asked(tmp_path: Path, questions: Any, person: Person) -> Any:
    """Return the output of one call."""
    found: list[Any] = []

    async def body() -> None:
        async with FakeServices(tmp_path, person=person) as lent:
            text = questions if isinstance(questions, str) else json.dumps(questions)
            found.append(await lent.call(ask_user_question, questions_json=text))

    run(body())
    return found[0]


def accepting(content: Any, features: frozenset[str] = MULTI) -> Person:
    return Person(lambda _: {"action": "accept", "content": content}, features)


def selected(tmp_path: Path, questions: list[Any], content: Any, features: frozenset[str] = MULTI) -> list[Any]:
    output = asked(tmp_path, questions, accepting(content, features))
    assert data(output)["outcome"] == "answered"
    assert json.loads(said(output)) == {"answers": data(output)["answers"]}
    return [answer["selected"] for answer in data(output)["answers"]]


@pytest.mark.parametrize("wrap", [lambda questions: {"questions": questions}, lambda questions: questions])
def test_all_questions_come_in_one_form_and_the_answers_in_order(tmp_path: Path, wrap: Any) -> None:
    content = {"question_1": "PostgreSQL", "question_2": ["tests", "lint"]}
    person = accepting(content)
    output = asked(tmp_path, wrap([DATABASE, CHECKS]), person)
    answers = [
        {"question": "Which database?", "selected": "PostgreSQL"},
        {"question": "Which checks?", "selected": ["lint", "tests"]},
    ]
    assert json.loads(said(output)) == {"answers": answers}
    assert data(output) == {"answers": answers, "outcome": "answered", "note": None}
    (params,) = person.asked
    assert params["message"] == "1. Which database?\n2. Which checks?"
    assert params["requestedSchema"] == {
        "type": "object",
        "properties": {
            "question_1": {
                "type": "string",
                "title": "Database",
                "description": "Which database? (PostgreSQL: needs a server)",
                "enum": ["SQLite", "PostgreSQL"],
            },
            "question_1_other": {
                "type": "string",
                "title": "Other (Database)",
                "description": "In your own words, not an option",
            },
            "question_2": {
                "type": "array",
                "title": "Which checks?",
                "items": {"type": "string", "enum": ["lint", "types", "tests"]},
            },
            "question_2_other": {
                "type": "string",
                "title": "Other (Which checks?)",
                "description": "In your own words, besides the options",
            },
        },
    }


def test_without_multi_select_each_option_is_a_box_to_tick(tmp_path: Path) -> None:
    person = accepting({"question_1_option_1": True, "question_1_option_2": False}, frozenset())
    output = asked(tmp_path, [CHECKS], person)
    assert data(output)["answers"] == [{"question": "Which checks?", "selected": ["lint"]}]
    (params,) = person.asked
    assert params["message"] == "Which checks?"
    properties = params["requestedSchema"]["properties"]
    assert list(properties) == [*(f"question_1_option_{n}" for n in (1, 2, 3)), "question_1_other"]
    assert properties["question_1_option_3"] == {
        "type": "boolean",
        "title": "tests",
        "description": "Which checks?",
        "default": False,
    }


@pytest.mark.parametrize(
    ("revision", "has_multi_select"), [("2025-06-18", False), ("2025-11-25", True), ("2026-07-28", True)]
)
def test_the_form_is_what_each_revision_allows(revision: str, has_multi_select: bool) -> None:
    schema = json.loads((SPEC / f"{revision}.schema.json").read_text())
    keyword = "$defs" if "$defs" in schema else "definitions"
    check = jsonschema_rs.validator_for({**schema, "$ref": f"#/{keyword}/ElicitRequest"})
    form = ask.build_form(ask.parse_questions(json.dumps([DATABASE, CHECKS])), has_multi_select)
    params = {"message": "x", "requestedSchema": form}
    request = {"jsonrpc": "2.0", "id": 1, "method": "elicitation/create", "params": params}
    assert [error.message for error in check.iter_errors(request)] == []
    allowed = schema[keyword]["PrimitiveSchemaDefinition"]
    strict = jsonschema_rs.validator_for({keyword: schema[keyword], **allowed})
    for declared in form["properties"].values():
        assert strict.is_valid(declared)


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ({"question_1": "SQLite"}, "SQLite"),
        ({"question_1": "SQLite", "question_1_other": "  "}, "SQLite"),
        ({"question_1": "SQLite", "question_1_other": " DuckDB "}, "DuckDB"),
        ({"question_1_other": "DuckDB"}, "DuckDB"),
        ({"question_1_other": "x" * 10_000}, "x" * 4_000),
        ({}, ""),
        (None, ""),
        ({"question_1": None, "question_1_other": None}, ""),
    ],
)
def test_an_answer_to_a_choice_is_an_option_or_free_text(tmp_path: Path, content: Any, expected: str) -> None:
    assert selected(tmp_path, [DATABASE], content) == [expected]


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ({"question_1": ["tests", "lint", "lint"]}, ["lint", "tests"]),
        ({"question_1": ["lint"], "question_1_other": "fuzzing"}, ["lint", "fuzzing"]),
        ({"question_1": []}, []),
        ({}, []),
        ({"question_1": ["types"] * 1_000}, ["types"]),
    ],
)
def test_an_answer_to_multi_select_is_options_and_free_text(tmp_path: Path, content: Any, expected: list[str]) -> None:
    assert selected(tmp_path, [CHECKS], content) == [expected]


@pytest.mark.parametrize(
    ("question", "content", "told"),
    [
        (DATABASE, {"question_1": "Oracle"}, 'field "question_1": "Oracle" is not one of'),
        (DATABASE, {"question_1": 7}, 'field "question_1" must be a string, not 7'),
        (DATABASE, {"question_1": ["PostgreSQL"]}, 'field "question_1" must be a string, not ["PostgreSQL"]'),
        (
            DATABASE,
            {"question_1": "SQLite", "question_1_other": {"a": 1}},
            'field "question_1_other" must be a string, not {"a": 1}',
        ),
        (DATABASE, {"colour": "blue", "sure": True}, "the answer has an unknown field 'colour'"),
        (CHECKS, {"question_1": ["lint", "fuzzing"]}, 'field "question_1.1": "fuzzing" is not one of'),
        (CHECKS, {"question_1": "types"}, 'field "question_1" must be a list, not "types"'),
        (CHECKS, {"question_1": ["lint", None]}, 'field "question_1.1"'),
        (CHECKS, {"question_1": ["a"] * 10_000}, 'field "question_1.0": "a" is not one of'),
        (
            CHECKS,
            {"question_1": ["a"] * 100_000},
            "and hold more than 30000 values",
        ),
    ],
)
def test_an_answer_that_does_not_fit_the_form_is_told_as_none_with_its_field_and_the_questions(
    tmp_path: Path, question: Any, content: Any, told: str
) -> None:
    output = asked(tmp_path, [question], accepting(content))
    assert data(output) == {"answers": [], "outcome": "unanswered", "note": said(output)}
    first, *rest = said(output).split("\n")
    assert told in first and first.startswith("There is no answer: ") and first.endswith(ask.IN_WORDS)
    assert len(said(output)) < 2_000
    assert any(question.get("question", question.get("text")) in line for line in rest)


def test_without_multi_select_a_box_is_ticked_or_not(tmp_path: Path) -> None:
    output = asked(tmp_path, [CHECKS], accepting({"question_1_option_1": "true"}, frozenset()))
    assert data(output)["outcome"] == "unanswered"
    assert 'field "question_1_option_1" must be true or false, not "true"' in said(output)


def test_declined_cancelled_and_unanswered_are_told_apart(tmp_path: Path) -> None:
    def no_answer(_: Any) -> Any:
        raise UnansweredError("no answer came", {"elicitation": {}})

    found = {
        name: asked(tmp_path / name, [DATABASE], person)
        for name, person in {
            "declined": Person(lambda _: {"action": "decline"}),
            "cancelled": Person(lambda _: {"action": "cancel", "content": {"question_1": "SQLite"}}),
            "odd": Person(lambda _: {"action": "explode"}),
            "unanswered": Person(no_answer),
        }.items()
    }
    assert {name: data(output)["outcome"] for name, output in found.items()} == {
        "declined": "declined",
        "cancelled": "cancelled",
        "odd": "cancelled",
        "unanswered": "unanswered",
    }
    assert all(data(output)["answers"] == [] for output in found.values())
    assert all(data(output)["note"] == said(output) for output in found.values())
    assert len({said(output) for output in found.values()}) == 3


@pytest.mark.parametrize(
    ("action", "outcome", "told"),
    [("decline", "declined", "declined at once"), ("cancel", "cancelled", "closed at once")],
)
def test_an_instant_refusal_is_reported_as_such_with_the_questions(
    tmp_path: Path, action: str, outcome: str, told: str
) -> None:
    output = asked(tmp_path, [DATABASE], Person(lambda _: {"action": action}, hasty=True))
    assert data(output) == {"answers": [], "outcome": outcome, "note": said(output)}
    assert said(output).split("\n") == [
        f"The questions were {told}: likely no person is there to see a form. {ask.IN_WORDS}",
        "",
        "1. Which database?",
        "   - SQLite",
        "   - PostgreSQL: needs a server",
        "   - or something else, in their own words",
    ]


def test_no_title_or_description_of_a_form_has_a_line_break_or_says_the_same_as_the_other(tmp_path: Path) -> None:
    options = ["a", {"label": "b\nb", "description": "one\n\ntwo"}]
    given = [
        {"question": "Long\nand longer, so that it has no room in a title of its own?", "options": options},
        {"question": "Which\nones?", "header": "o\nn", "options": options, "multiSelect": True},
    ]
    for features in (MULTI, frozenset[str]()):
        form = ask.build_form(parse_questions(json.dumps(given)), bool(features))
        for declared in form["properties"].values():
            assert "\n" not in declared["title"] + declared.get("description", "")
            assert declared["title"] != declared.get("description")
    assert form["properties"]["question_1_other"]["title"].startswith("Other (Long and longer")


def test_a_client_that_cannot_be_asked_gets_the_questions_as_text(tmp_path: Path) -> None:
    output = asked(tmp_path, [DATABASE, CHECKS], Person())
    assert data(output) == {"answers": [], "outcome": "unanswered", "note": said(output)}
    assert said(output).split("\n") == [
        f"No form can be shown here. {ask.IN_WORDS}",
        "",
        "1. Which database?",
        "   - SQLite",
        "   - PostgreSQL: needs a server",
        "   - or something else, in their own words",
        "",
        "2. Which checks? (several may be chosen)",
        "   - lint",
        "   - types",
        "   - tests",
        "   - or something else, in their own words",
    ]


def question(**changes: Any) -> list[Any]:
    return [{**{name: value for name, value in DATABASE.items() if name not in changes}, **changes}]


@pytest.mark.parametrize(
    ("questions", "told"),
    [
        ("not json", "questions_json is not JSON"),
        ("[" * 40_000, "questions_json is not JSON"),
        ("x" * 50_001, "at most 50000 are allowed"),
        ("3", 'questions_json must be {"questions"'),
        ({"question": "x"}, 'questions_json must be {"questions"'),
        (
            {"questions": [DATABASE], "more": 1},
            "questions_json has 'more', which is not one of its members; questions_json must be",
        ),
        ({"questions": None}, 'questions_json must be {"questions"'),
        ({"questions": {}}, 'questions_json must be {"questions"'),
        ([], "there are 0 questions: ask 1 to 4"),
        ([{**DATABASE, "question": f"{n}?"} for n in range(5)], "there are 5 questions"),
        ([DATABASE, "what?"], "question 2 must be an object"),
        ([DATABASE, DATABASE], "'Which database?' occurs twice among the questions"),
        ([{"options": ["a", "b"]}], "question 1 needs its text in 'question'"),
        (question(text="too"), "not in both"),
        (question(question=" "), "question 1: 'question' must be a text that is not empty"),
        (question(question=3), "question 1: 'question' must be a text"),
        (question(question="x" * 2001), "at most 2000"),
        (question(header=3), "question 1: 'header' must be a text"),
        (question(multiSelect="yes"), "question 1: 'multiSelect' must be true or false"),
        (question(multiselect=True), "question 1 has 'multiselect', which is not one of its members"),
        (question(options=None), "question 1: 'options' must be a list of 2 to 4"),
        (question(options="ab"), "question 1: 'options' must be a list of 2 to 4"),
        (question(options=["a"]), "question 1: 'options' must be a list of 2 to 4, not 1"),
        (question(options=list("abcde")), "question 1: 'options' must be a list of 2 to 4, not 5"),
        (question(options=["a", "a"]), "'a' occurs twice among the options of question 1"),
        (question(options=["a", {"label": " a "}]), "'a' occurs twice"),
        (question(options=["a", 2]), "question 1, option 2 must be a string"),
        (question(options=["a", ""]), "question 1, option 2: 'label' must be a text"),
        (question(options=["a", {"description": "x"}]), "question 1, option 2: 'label' must be a text"),
        (question(options=["a", {"label": "b", "value": 1}]), "question 1, option 2 has 'value'"),
        (question(options=["a", {"label": "b", "description": 1}]), "'description' must be a text"),
        (question(options=["a", "x" * 201]), "at most 200"),
    ],
)
def test_an_error_names_the_question_at_fault(tmp_path: Path, questions: Any, told: str) -> None:
    person = accepting({})
    assert told in refused(asked(tmp_path, questions, person))
    assert person.asked == []


@pytest.mark.parametrize(
    ("header", "shown"),
    [("x" * 12, "x" * 12), ("x" * 13, "x" * 11 + "…"), ("Which of the two?", "Which of th…"), (" a\n b ", "a b")],
)
def test_a_long_header_is_cut(header: str, shown: str) -> None:
    (parsed,) = parse_questions(json.dumps(question(header=header)))
    assert parsed.header == shown


def test_a_null_is_the_same_as_nothing(tmp_path: Path) -> None:
    option = {"label": "b", "description": None}
    given = question(header=None, multiSelect=None, text=None, options=["a", option])
    plain = question(options=["a", "b"])
    del plain[0]["header"]
    assert parse_questions(json.dumps(given)) == parse_questions(json.dumps(plain))


def test_the_schema_is_the_contracts() -> None:
    (declared,) = ask_user_question.input["properties"].items()
    assert (declared[0], declared[1]["type"]) == ("questions_json", "string")
    assert ask_user_question.input["required"] == ["questions_json"]
    assert len(ask_user_question.description.encode()) < 1000
    assert msgspec.json.encode(ask_user_question.output)
