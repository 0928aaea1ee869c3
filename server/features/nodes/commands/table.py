"""List the commands of nodes, and the flag by which toolgate health asks one."""

from toolgate.server.cli.parsing.command import JSON, STATE, Command, FeatureCommands, Variant, pick_options
from toolgate.server.config.option import SERVER, Option
from toolgate.server.config.options import OPTIONS
from toolgate.server.config.types import parse_bool
from toolgate.server.features.nodes.address import parse_node_address

AT_NODE = tuple(option for option in OPTIONS if option.place != SERVER)
LISTEN = Option(
    "listen",
    "where servers connect: unix:/PATH (default: STATE/node.sock), or HOST:PORT by TLS, with --node-certificate",
    parse_node_address,
    (),
    "ADDRESS",
)
NODES = pick_options("state", "node", "node-certificate", opens=("state", "keys"))
UNDO = Option("undo", "give it new people again", parse_bool)
UNDO_ADOPT = Option("undo", "place them where there is room again", parse_bool)
NODE_NAME = Option(
    "name", "the node's name, for its first start, which keeps it (default: the host name)", metavar="NAME"
)
MAX_PEOPLE = Option(
    "max-people", "how many people the node takes; others go to other nodes (default: any number)", metavar="N"
)
KEYS = Option("folder", "folder for the files (default: STATE/keys)", metavar="FOLDER")
RENEW = Option("replace", "make new certificates in place of those that are there", parse_bool)
HEALTH_NODE = Option("node", "check the node at this address", parse_node_address, metavar="ADDRESS")

COMMANDS = FeatureCommands(
    commands=(
        Command(
            "node",
            "run commands, files and browser in a separate process that survives server restarts",
            "features.nodes.commands.node:serve_node",
            AT_NODE,
            "",
            (LISTEN, NODE_NAME, MAX_PEOPLE),
            example="toolgate node --listen unix:/run/toolgate-node/node.sock",
        ),
        Command(
            "node doctor",
            "check whether this machine can run a node, with its options",
            "features.nodes.commands.doctor:check_node",
            AT_NODE,
            "",
            (LISTEN, JSON),
            example="toolgate node doctor --state /var/lib/toolgate-node",
        ),
        Command(
            "node certificate",
            "make the certificates for a node at HOST:PORT and for its servers; HOST is the node's name or address",
            "features.nodes.commands.certificate:make_certificates",
            STATE,
            "[HOST…]",
            (KEYS, RENEW),
            example="toolgate node certificate node1.example.com",
        ),
        Command(
            "node list",
            "list nodes, and how many people are on each",
            "features.nodes.commands.nodes:list_nodes",
            NODES,
            example="toolgate node list --node unix:/run/toolgate-node/node.sock",
        ),
        Command(
            "node drain",
            "give a node no new people",
            "features.nodes.commands.nodes:drain",
            NODES,
            "NAME",
            (UNDO,),
            example="toolgate node drain cellar",
        ),
        Command(
            "node limit",
            "set how many people a node gets; 0 is any number",
            "features.nodes.commands.nodes:limit",
            NODES,
            "NAME NUMBER",
            example="toolgate node limit cellar 20",
        ),
        Command(
            "node adopt",
            "place people who are on no node where their files are, as the node says",
            "features.nodes.commands.nodes:adopt",
            NODES,
            "NAME",
            (UNDO_ADOPT,),
            example="toolgate node adopt cellar",
        ),
        Command(
            "node move",
            "move a person's workspace to another node",
            "features.nodes.commands.nodes:move",
            NODES,
            "WHO NAME",
            example="toolgate node move ada attic",
        ),
    ),
    overview={"node": "run commands in a process that survives server restarts"},
    variants=(
        Variant("health", HEALTH_NODE, "features.nodes.commands.health:greet_node", pick_options("node-certificate")),
    ),
)
