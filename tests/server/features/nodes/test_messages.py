"""The table of what a gateway may request is that of the Protocols."""

import inspect

from toolgate.server.features.nodes.messages import FOR_REQUEST, IN_PARTS, METHODS, MOVE_METHODS, STANDING
from toolgate.server.features.nodes.node.principal_methods import PrincipalMethods
from toolgate.tools.workspace.workspace import Workspace


def test_messages_can_hold_what_gateways_request() -> None:
    for owner, methods in METHODS.objects.items():
        assert methods and all(METHODS.find(f"{owner}.{name}") for name in methods)


def test_methods_that_are_named_by_hand_exist() -> None:
    assert all(METHODS.find(name) for name in MOVE_METHODS | STANDING)
    assert all(inspect.iscoroutinefunction(getattr(Workspace, name)) for name in (*FOR_REQUEST, *IN_PARTS))


def test_a_node_takes_the_arguments_that_the_workspace_declares() -> None:
    for name in FOR_REQUEST:
        assert inspect.signature(getattr(PrincipalMethods, name)) == inspect.signature(getattr(Workspace, name))


def test_no_two_objects_at_a_node_have_a_method_of_the_same_name() -> None:
    """A gateway's workspace has the methods of all."""
    names = [name for methods in METHODS.objects.values() for name in methods]
    assert len(names) == len(set(names))
