"""Find uses of private names of libraries: they change without notice."""

import ast
import importlib
import inspect
import re
from collections.abc import Iterator, Mapping

LIBRARIES = ("asyncio", "httptools", "redis", "sse_starlette", "starlette", "uvicorn", "uvloop")
PRIVATE = re.compile(r"_(?!_)\w+")


def find_private_names(tree: ast.Module, own: frozenset[str]) -> Iterator[str]:
    """Yield each private name of a library that a module uses. `own` are the private names of the program."""
    imported = dict(_imports(tree))
    for node in ast.walk(tree):
        match node:
            case ast.ImportFrom(module=str(module), names=names) if _is_library(module):
                parts = [*module.split("."), *(alias.name for alias in names)]
                yield from filter(PRIVATE.fullmatch, parts)
            case ast.Import(names=names):
                parts = [part for alias in names if _is_library(alias.name) for part in alias.name.split(".")]
                yield from filter(PRIVATE.fullmatch, parts)
            case ast.Attribute(value=value, attr=name) if PRIVATE.fullmatch(name):
                if name not in own or _root(value) in imported:
                    yield name
            case ast.Call(
                func=ast.Name(id="getattr" | "setattr" | "hasattr" | "delattr"), args=[_, ast.Constant(value), *_]
            ):
                if isinstance(value, str) and PRIVATE.fullmatch(value) and value not in own:
                    yield value
            case ast.ClassDef():
                for base in node.bases:
                    dotted = ast.unparse(base)
                    root, _, rest = dotted.partition(".")
                    if root in imported:
                        yield from _find_overrides(node, ".".join(filter(None, (imported[root], rest))))


def own_names(trees: Mapping[object, ast.Module]) -> frozenset[str]:
    """Return the private names that the program defines."""
    names: set[str] = set()
    for tree in trees.values():
        for node in ast.walk(tree):
            match node:
                case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                    names.add(name)
                case ast.Name(id=name, ctx=ast.Store()):
                    names.add(name)
                case ast.Attribute(value=ast.Name(id="self" | "cls"), attr=name, ctx=ast.Store()):
                    names.add(name)
    return frozenset(filter(PRIVATE.fullmatch, names))


def _imports(tree: ast.Module) -> Iterator[tuple[str, str]]:
    """Yield the name and the origin of each thing that is imported from a library."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                if _is_library(alias.name):
                    yield (alias.asname, alias.name) if alias.asname else (2 * (alias.name.partition(".")[0],))
        elif isinstance(node, ast.ImportFrom) and _is_library(node.module or ""):
            for alias in node.names:
                yield alias.asname or alias.name, f"{node.module}.{alias.name}"


def _is_library(module: str) -> bool:
    return module.partition(".")[0] in LIBRARIES


def _root(value: ast.expr) -> str:
    """Return the name that a chain of attributes and calls begins with, or ""."""
    while isinstance(value, ast.Attribute | ast.Call):
        value = value.value if isinstance(value, ast.Attribute) else value.func
    return value.id if isinstance(value, ast.Name) else ""


def _find_overrides(node: ast.ClassDef, base: str) -> Iterator[str]:
    """Yield what a subclass uses of a library's class, and the private parameters that the library passes by name."""
    theirs = _private_names(base)
    for inner in ast.walk(node):
        match inner:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                if name in theirs:
                    yield name
                if name == "__init__":
                    arguments = (*inner.args.posonlyargs, *inner.args.args, *inner.args.kwonlyargs)
                    yield from filter(PRIVATE.fullmatch, (argument.arg for argument in arguments))
            case ast.Attribute(value=ast.Name(id="self" | "cls"), attr=name) if name in theirs:
                yield name


def _private_names(dotted: str) -> frozenset[str]:
    """Return the private names of a library's class and its bases."""
    module, _, name = dotted.rpartition(".")
    each = getattr(importlib.import_module(module), name)
    names = {name for name in dir(each) if PRIVATE.fullmatch(name)}
    for base in inspect.getmro(each):
        if _is_library(base.__module__):
            names |= set(re.findall(r"self\.(_(?!_)\w+)", inspect.getsource(base)))
    return frozenset(names)
