"""AskUserQuestion: put up to four questions to the person in one form.

Answers come from another program. They are checked against the form's schema (`Context.elicit`) and against its fields
here. An answer that does not fit counts as none, and the note names the field at fault. Free text has a field of its
own, so a choice must be one of the options.
"""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

import msgspec

from toolgate.tools.api.content import Output, Text
from toolgate.tools.api.context.context import Context
from toolgate.tools.api.errors import StillWaitingError, ToolError, UnansweredError
from toolgate.tools.api.text.cleaning import one_line, refuse_control_characters
from toolgate.tools.api.text.json_text import JsonError, decode_json
from toolgate.tools.api.tool import tool

MAX_JSON = 50_000  # characters: four questions at all their limits fit
MAX_QUESTIONS = 4
MIN_OPTIONS, MAX_OPTIONS = 2, 4
MAX_HEADER = 12  # characters that a form shows; a longer header is cut
MAX_QUESTION = 2_000
MAX_LABEL = 200
MAX_DESCRIPTION = 1_000
MAX_OTHER = 4_000  # characters of a person's free text that reach the model
MAX_TITLE = 60  # characters of a question used in place of a missing header
KEY = "questions"

SHAPE = (
    'questions_json must be {"questions": [{"question": "…", "header": "…", "options": ["…", '
    '{"label": "…", "description": "…"}], "multiSelect": false}]}, or the bare list'
)
QUESTION_TYPES = {"type": "object", "properties": {"options": {"type": "array"}, "multiSelect": {"type": "boolean"}}}
TYPES: dict[str, Any] = {
    "type": ["object", "array"],
    "properties": {"questions": {"type": "array", "items": QUESTION_TYPES}},
    "items": QUESTION_TYPES,
}
IN_WORDS = "Ask the person in the conversation, and wait for the answer:"
NO_FORM = "No form can be shown here."
DECLINED = "The person declined to answer."
CANCELLED = "The person closed the questions without answering."
AT_ONCE = "The questions were {} at once: likely no person is there to see a form."

Outcome = Literal["answered", "declined", "cancelled", "unanswered"]


class QuestionAnswer(msgspec.Struct, frozen=True):
    question: str
    selected: str | list[str]


class AskResult(msgspec.Struct, frozen=True):
    answers: list[QuestionAnswer]
    outcome: Outcome
    note: str | None  # what the model should do now, if there is no answer


class QuestionOption(msgspec.Struct, frozen=True):
    label: str
    description: str


class FormQuestion(msgspec.Struct, frozen=True):
    key: str  # its property in the form
    text: str
    header: str
    options: Sequence[QuestionOption]
    multiple: bool

    @property
    def other_key(self) -> str:
        """Return the property of the answer in own words. The server's page shows it as the last option."""
        return f"{self.key}_other"

    def option_key(self, number: int) -> str:
        """Return the property name of an option's checkbox, for a revision without multi-select."""
        return f"{self.key}_option_{number}"


@tool(
    name="AskUserQuestion",
    title="Ask the user",
    read_only=True,
    open_world=False,
    output=AskResult,
    scope="tools:workflow",
    in_plan=True,
)
async def ask_user_question(
    questions_json: Annotated[str, '{"questions":[{"question","header"?,"options":[…],"multiSelect"?}]}'],
    ctx: Context,
) -> Output:
    """Ask the person to decide, when you can't and it matters.

    1 to 4 questions, each with 2 to 4 options (a label, or {"label","description"}), header up to 12 characters; they
    can always answer in their own words. Returns {"answers":[{"question","selected"}]}, or why there is no answer and
    what to do then.
    """
    questions = parse_questions(questions_json)
    if not ctx.can("elicitation"):
        return _no_answer("unanswered", _as_text(questions, NO_FORM))
    is_whole = ctx.knows("option_descriptions")  # then the form has all of the questions, so the message needs none
    asked = build_page_form(questions) if is_whole else build_form(questions, ctx.knows("multi_select"))
    try:
        reply = await ctx.elicit("" if is_whole else _message(questions), asked, key=KEY)
    except StillWaitingError as question:
        waits = f"The question is also on the server's page, unanswered so far. {question.advice}."
        return _no_answer("unanswered", f"{_as_text(questions, NO_FORM)}\n\n{waits}")
    except UnansweredError as refusal:
        return _no_answer("unanswered", _as_text(questions, f"There is no answer: {refusal.text}."))
    is_hasty = ctx.answered_at_once(KEY)
    match reply.action:
        case "accept":
            unknown = sorted(reply.content.keys() - asked["properties"].keys())
            if unknown:
                finding = f"the answer has an unknown field {unknown[0][:MAX_LABEL]!r}"
                return _no_answer("unanswered", _as_text(questions, f"There is no answer: {finding}."))
            found = read_answers(questions, reply.content)
            text = msgspec.json.encode({"answers": found}).decode()
            return Output([Text(text)], AskResult(found, "answered", None))
        case "decline":
            told = _as_text(questions, AT_ONCE.format("declined")) if is_hasty else DECLINED
            return _no_answer("declined", told)
        case _:
            told = _as_text(questions, AT_ONCE.format("closed")) if is_hasty else CANCELLED
            return _no_answer("cancelled", told)


def _no_answer(outcome: Outcome, note: str) -> Output:
    """Return the result for a form without an answer."""
    return Output([Text(note)], AskResult([], outcome, note))


def parse_questions(text: str) -> list[FormQuestion]:
    """Return the questions in `questions_json`. Raises ToolError naming the question at fault and what was expected."""
    if len(text) > MAX_JSON:
        raise ToolError(f"questions_json has {len(text)} characters, at most {MAX_JSON} are allowed")
    try:
        given = decode_json(text)
    except JsonError as error:
        raise ToolError(f"questions_json is not JSON ({error}); {SHAPE}") from None
    given = _read_texts(given)
    if isinstance(given, dict):
        surplus = sorted(set(given) - {"questions"})
        if surplus:
            raise ToolError(f"questions_json has {surplus[0][:MAX_LABEL]!r}, which is not one of its members; {SHAPE}")
        given = given.get("questions")
    if not isinstance(given, list):
        raise ToolError(SHAPE)
    if not 1 <= len(given) <= MAX_QUESTIONS:
        raise ToolError(f"there are {len(given)} questions: ask 1 to {MAX_QUESTIONS} at once")
    questions = [_question(number, item) for number, item in enumerate(given, 1)]
    _refuse_twice("the questions", [question.text for question in questions])
    return questions


def _read_texts(given: Any) -> Any:
    """Return the questions with lists and booleans in place of texts that spell them, as some clients send them."""
    from toolgate.tools.api.schema.reader import SchemaReader  # start-up: few calls ask

    return SchemaReader(TYPES).read(given, deep=True)


def build_form(questions: Sequence[FormQuestion], has_multi_select: bool) -> dict[str, Any]:
    """Return the `requestedSchema` of an elicitation: flat, of strings, enums and booleans (client/elicitation). No
    property is required: a person may answer any question by free text alone."""
    properties: dict[str, Any] = {}
    for question in questions:
        properties.update(_choices(question, has_multi_select))
        properties[question.other_key] = {
            "type": "string",
            "title": f"Other ({_title(question)})",
            "description": f"In your own words, {'besides the options' if question.multiple else 'not an option'}",
        }
    return {"type": "object", "properties": properties}


def build_page_form(questions: Sequence[FormQuestion]) -> dict[str, Any]:
    """Return the schema for the server's page: each option has its description, and the title is the question."""
    properties: dict[str, Any] = {}
    for question in questions:
        options = [
            {"const": each.label, "title": each.label, "description": each.description} for each in question.options
        ]
        choice = {"type": "array", "items": {"anyOf": options}} if question.multiple else {"oneOf": options}
        properties[question.key] = {"type": "string", "title": question.text, **choice}
        properties[question.other_key] = {"type": "string", "title": "Other", "maxLength": MAX_OTHER}
    return {"type": "object", "properties": properties}


def read_answers(questions: Sequence[FormQuestion], content: Mapping[str, Any]) -> list[QuestionAnswer]:
    """Return the answer to each question of an accepted form; "" or [] for one left empty."""
    return [QuestionAnswer(question.text, _read_selection(question, content)) for question in questions]


def _read_selection(question: FormQuestion, content: Mapping[str, Any]) -> str | list[str]:
    labels = [option.label for option in question.options]
    value = content.get(question.key, [])
    chosen = [value] if isinstance(value, str) else value
    ticked = [label for number, label in enumerate(labels, 1) if content.get(question.option_key(number)) is True]
    known = [label for label in labels if label in chosen or label in ticked]
    words = content.get(question.other_key, "").strip()[:MAX_OTHER]
    if question.multiple:
        return [*known, words] if words else known
    return words or next(iter(known), "")


def _choices(question: FormQuestion, has_multi_select: bool) -> dict[str, Any]:
    labels = [option.label for option in question.options]
    about = {"title": one_line(question.header or question.text)}
    described = _describe(question)
    if described:
        about["description"] = described
    if not question.multiple:
        return {question.key: {"type": "string", **about, "enum": labels}}
    if has_multi_select:
        return {question.key: {"type": "array", **about, "items": {"type": "string", "enum": labels}}}
    return {
        question.option_key(number): {
            "type": "boolean",
            "title": one_line(option.label),
            "description": one_line(option.description or question.text),
            "default": False,
        }
        for number, option in enumerate(question.options, 1)
    }


def _describe(question: FormQuestion) -> str:
    """Return the question if it is not the title, and what each option means, on one line. Not every revision has a
    place for that in an enum. Some clients show a line break as a stray character."""
    meanings = [f"{option.label}: {option.description}" for option in question.options if option.description]
    told = [question.text] if question.header else []
    return one_line(" ".join([*told, f"({'; '.join(meanings)})"] if meanings else told))


def _title(question: FormQuestion) -> str:
    """Return a title of a word or two for the question."""
    text = one_line(question.text)
    return one_line(question.header) or (text if len(text) <= MAX_TITLE else f"{text[: MAX_TITLE - 1]}…")


def _message(questions: Sequence[FormQuestion]) -> str:
    if len(questions) == 1:
        return questions[0].text
    return "\n".join(f"{number}. {question.text}" for number, question in enumerate(questions, 1))


def _as_text(questions: Sequence[FormQuestion], why: str) -> str:
    """Return the reason, then the questions as text."""
    lines = [f"{why} {IN_WORDS}"]
    for number, question in enumerate(questions, 1):
        several = " (several may be chosen)" if question.multiple else ""
        lines += ["", f"{number}. {question.text}{several}"]
        for option in question.options:
            meaning = f": {option.description}" if option.description else ""
            lines.append(f"   - {option.label}{meaning}")
        lines.append("   - or something else, in their own words")
    return "\n".join(lines)


def _question(number: int, item: Any) -> FormQuestion:
    where = f"question {number}"
    if not isinstance(item, dict):
        raise ToolError(f"{where} must be an object; {SHAPE}")
    item = _without_nulls(item)
    _refuse_unknown(where, item, {"question", "text", "header", "options", "multiSelect"})
    if ("question" in item) == ("text" in item):
        raise ToolError(f"{where} needs its text in 'question' (or in 'text', not in both)")
    name = "question" if "question" in item else "text"
    multiple = item.get("multiSelect", False)
    if not isinstance(multiple, bool):
        raise ToolError(f"{where}: 'multiSelect' must be true or false")
    return FormQuestion(
        key=f"question_{number}",
        text=_string(where, name, item[name], MAX_QUESTION),
        header=_cut_header(_optional(where, "header", item, MAX_QUESTION)),
        options=_options(where, item.get("options")),
        multiple=multiple,
    )


def _cut_header(text: str) -> str:
    line = one_line(text)
    return line if len(line) <= MAX_HEADER else f"{line[: MAX_HEADER - 1].rstrip()}…"


def _options(where: str, given: Any) -> list[QuestionOption]:
    if not isinstance(given, list) or not MIN_OPTIONS <= len(given) <= MAX_OPTIONS:
        count = f", not {len(given)}" if isinstance(given, list) else ""
        raise ToolError(f"{where}: 'options' must be a list of {MIN_OPTIONS} to {MAX_OPTIONS}{count}")
    options = [_option(f"{where}, option {number}", item) for number, item in enumerate(given, 1)]
    _refuse_twice(f"the options of {where}", [option.label for option in options])
    return options


def _option(where: str, item: Any) -> QuestionOption:
    if isinstance(item, str):
        return QuestionOption(_string(where, "label", item, MAX_LABEL), "")
    if not isinstance(item, dict):
        raise ToolError(f'{where} must be a string, or {{"label": "…", "description": "…"}}')
    item = _without_nulls(item)
    _refuse_unknown(where, item, {"label", "description"})
    label = _string(where, "label", item.get("label"), MAX_LABEL)
    return QuestionOption(label, _optional(where, "description", item, MAX_DESCRIPTION))


def _without_nulls(item: Mapping[str, Any]) -> dict[str, Any]:
    """Return the item without nulls, which some clients send for fields left out."""
    return {name: value for name, value in item.items() if value is not None}


def _optional(where: str, name: str, item: Mapping[str, Any], limit: int) -> str:
    value = item.get(name)
    return "" if value in (None, "") else _string(where, name, value, limit)


def _string(where: str, name: str, value: Any, limit: int) -> str:
    if not isinstance(value, str) or not value.strip():
        raise ToolError(f"{where}: {name!r} must be a text that is not empty")
    text = value.strip()
    try:
        refuse_control_characters(**{name: text})
    except ToolError as error:
        raise ToolError(f"{where}: {error.text}") from None
    if len(text) > limit:
        raise ToolError(f"{where}: {name!r} has {len(text)} characters, at most {limit} are allowed")
    return text


def _refuse_unknown(where: str, item: Mapping[str, Any], known: set[str]) -> None:
    unknown = sorted(set(item) - known)
    if unknown:
        raise ToolError(
            f"{where} has {unknown[0][:MAX_LABEL]!r}, which is not one of its members: {', '.join(sorted(known))}"
        )


def _refuse_twice(what: str, texts: Sequence[str]) -> None:
    seen: set[str] = set()
    for text in texts:
        if text in seen:
            raise ToolError(f"{text!r} occurs twice among {what}: make each different")
        seen.add(text)
