"""What every official client is to find, and the ways in which the two SDKs' clients negotiate."""

MODES = ["legacy", "auto", "2026-07-28"]  # initialize; ask, and take the newest there is; the stateless one, unasked

THIRTEEN = [
    "Bash",
    "ReadImage",
    "ReadDocs",
    "WebSearch",
    "TaskManager",
    "PlanMode",
    "AskUserQuestion",
    "InvokeSkill",
    "BackgroundBash",
    "ReadBgOutput",
    "ListBgTasks",
    "KillBgTask",
    "SetCallback",
]
