"""The thirteen built-in tools, in their order. They take the path every plugin takes."""

from toolgate.tools.ask import ask_user_question
from toolgate.tools.callbacks import set_callback
from toolgate.tools.docs import read_docs
from toolgate.tools.images import read_image
from toolgate.tools.plan import plan_mode
from toolgate.tools.search import web_search
from toolgate.tools.shell import background_bash, bash, kill_bg_task, list_bg_tasks, read_bg_output
from toolgate.tools.skills import invoke_skill
from toolgate.tools.tasks import task_manager

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
