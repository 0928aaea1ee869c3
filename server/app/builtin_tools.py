"""Build the parts that come with the server: thirteen tools in order, resources, and two parts per skill.

They are registered like the parts of any plugin.
"""

from collections.abc import Sequence

from toolgate.server.base.errors import UsageError
from toolgate.server.base.principals.name_patterns import check_order, is_chosen
from toolgate.server.base.text import suggest
from toolgate.tools.api.registry import Part
from toolgate.tools.builtin.ask import ask_user_question
from toolgate.tools.builtin.callbacks import inbox, set_callback
from toolgate.tools.builtin.docs import read_docs
from toolgate.tools.builtin.images import read_image
from toolgate.tools.builtin.plan import current_plan, plan_mode
from toolgate.tools.builtin.shell import background_bash, bash, bg_output, kill_bg_task, list_bg_tasks, read_bg_output
from toolgate.tools.builtin.skills.resources import manifest_of, prompt_of, skill_file
from toolgate.tools.builtin.skills.skills import Skills, invoke_skill, tool_description
from toolgate.tools.builtin.todos import one_task, task_list, task_manager
from toolgate.tools.builtin.workspace_files import workspace_file
from toolgate.tools.reading.search.tool import web_search

TOOLS = (
    bash,
    read_image,
    read_docs,
    web_search,
    task_manager,
    plan_mode,
    ask_user_question,
    invoke_skill,
    background_bash,
    read_bg_output,
    list_bg_tasks,
    kill_bg_task,
    set_callback,
)
NO_TOOLS = "none"  # as the only word
RESOURCES = (task_list, current_plan, inbox, one_task, bg_output, skill_file, workspace_file)


def builtin_parts(skills: Skills) -> list[Part]:
    """Return the built-in parts. A tool's description lists the skills found in their folders now."""
    offered = invoke_skill.with_description(tool_description(skills))
    return [*(offered if tool is invoke_skill else tool for tool in TOOLS), *RESOURCES]


def find_unserved(words: Sequence[str]) -> list[str]:
    """Return the names of the built-in tools that `--tools` leaves out. A word has patterns with commas between them.

    Raises UsageError for a pattern that matches no tool.
    """
    patterns = [pattern.strip() for word in words for pattern in word.split(",")]
    names = [tool.name for tool in TOOLS]
    if patterns == [NO_TOOLS]:
        return names
    for pattern in patterns:
        bare = pattern.removeprefix("!")
        if not any(is_chosen(name, [bare]) for name in names):
            near = suggest(bare, names) or f"; tools are {', '.join(names)}, and {NO_TOOLS} leaves out all"
            raise UsageError(f"--tools: {pattern!r} matches no built-in tool{near}")
    try:
        check_order(patterns)
    except ValueError as error:
        raise UsageError(f"--tools: {error}") from None
    return [name for name in names if not is_chosen(name, patterns)]


def skill_parts(skills: Skills) -> list[Part]:
    """Return a resource and a prompt for each skill found now."""
    found = skills.catalogue().values()
    return [*map(manifest_of, found), *map(prompt_of, found)]
