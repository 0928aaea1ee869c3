"""A server with FastMCP that has skills, to be mounted; run by the Python of `servers.lock`."""

from fastmcp import FastMCP, Skill
from fastmcp.skills.provider import SkillCatalogProvider

server = FastMCP("skilled")
lamps = Skill(
    name="lamps",
    description="Trim the lamps.",
    instructions="# Lamps\n\nFollow references/wick.md.\n",
    files={"references/wick.md": "Trim the wick at dusk.\n"},
)
server.add_provider(SkillCatalogProvider([lamps]))

if __name__ == "__main__":
    server.run(show_banner=False)
