"""Find changes of a line that the tests do not notice: `python -m tests.mutants [--each N] [--seed N] [MODULE …]`.

Of each module a sample of its mutants is tried, one at a time, in a copy of the repository with its own environment, by
the narrow tests of `SUITES`. Other tests may notice a surviving mutant, or it may be equivalent."""

import argparse
import ast
import contextlib
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SLOWEST = 120.0  # seconds for the tests of a mutant, which may hang: the slowest of `SUITES` take a third

ISSUING = (
    "oauth_server/test_codes.py",
    "oauth_server/test_refresh_tokens.py",
    "oauth_server/test_clients.py",
    "login/test_providers.py",
)
SUITES: dict[str, tuple[str, ...]] = {  # a module or folder → its tests
    "server/state/keys/sealed_state.py": ("tests/server/state/keys/test_sealed_state.py",),
    "server/auth/login/throttle.py": ("tests/server/auth/login/test_accounts.py",),
    "server/auth/login/accounts.py": ("tests/server/auth/login/test_accounts.py",),
    "server/auth/tokens/access_tokens.py": (
        "tests/server/auth/tokens/test_access_tokens.py",
        "tests/server/auth/tokens/test_signing_keys.py",
    ),
    "server/auth/tokens/signing_keys.py": (
        "tests/server/auth/tokens/test_signing_keys.py",
        "tests/server/auth/tokens/test_access_tokens.py",
    ),
    "server/auth/tokens/jose.py": (
        "tests/server/auth/tokens/test_access_tokens.py",
        "tests/server/auth/tokens/test_external_issuer.py",
        "tests/server/auth/login/test_providers.py",
    ),
    "server/base/principals/scopes.py": ("tests/server/base/principals/test_scopes.py",),
    "server/auth/tokens/external_issuer.py": ("tests/server/auth/tokens/test_external_issuer.py",),
    "server/auth/login/providers.py": ("tests/server/auth/login/test_providers.py",),
    "server/auth/clients/model.py": ("tests/server/auth/clients/test_clients.py",),
    "server/auth/clients/metadata_documents.py": ("tests/server/auth/clients/test_clients.py",),
    "server/auth/clients/redirect_uris.py": (
        "tests/server/auth/clients/test_clients.py",
        "tests/server/auth/oauth_server/test_codes.py",
    ),
    "server/auth/oauth_server": tuple(f"tests/server/auth/{name}" for name in ISSUING),
    "server/state/batch.py": ("tests/server/state/test_batch.py",),
    "server/state/store.py": ("tests/server/state/sqlite/test_store.py", "tests/server/state/sqlite/test_upgrade.py"),
    "server/state/sqlite/database.py": (
        "tests/server/state/sqlite/test_store.py",
        "tests/server/state/sqlite/test_upgrade.py",
    ),
    "server/state/migrate.py": ("tests/server/state/sqlite/test_upgrade.py",),
    "server/state/sqlite/upgrade.py": ("tests/server/state/sqlite/test_upgrade.py",),
    "server/state/rows/todos.py": (
        "tests/server/state/rows/test_todos_and_plans.py",
        "tests/tools/builtin/test_tasks.py",
    ),
    "server/state/rows/tasks.py": ("tests/server/state/rows/test_tasks.py",),
    "server/state/rows/callbacks.py": (
        "tests/server/state/rows/test_callback_timer.py",
        "tests/tools/builtin/test_callbacks.py",
    ),
    "server/state/rows/due_callbacks.py": ("tests/server/state/rows/test_callback_timer.py",),
    "server/state/rows/sessions.py": ("tests/transports/test_restart.py",),
    "server/state/audit/entry.py": ("tests/server/features/telemetry/audit/test_log.py",),
    "server/features/telemetry/audit/log.py": ("tests/server/features/telemetry/audit/test_log.py",),
    "server/features/telemetry/audit/reader.py": (
        "tests/server/features/telemetry/audit/test_log.py",
        "tests/server/features/telemetry/test_audit_command.py",
    ),
    "server/features/telemetry/audit/redaction.py": ("tests/server/features/telemetry/audit/test_recorder.py",),
    "server/features/telemetry/audit/recorder.py": ("tests/server/features/telemetry/audit/test_recorder.py",),
    "server/workspaces/sparse_files.py": ("tests/server/workspaces/test_folders.py",),
    "server/workspaces/archive.py": (
        "tests/server/workspaces/test_folders.py",
        "tests/server/workspaces/test_retention.py",
    ),
    "server/workspaces/unarchive.py": (
        "tests/server/workspaces/test_folders.py",
        "tests/server/state/backup/test_backup.py",
    ),
    "tools/workspace/output/spool.py": (
        "tests/tools/workspace/output/test_spool.py",
        "tests/tools/builtin/test_background.py",
    ),
    "tools/workspace/sandbox": (
        "tests/tools/workspace/sandbox/test_sandbox.py",
        "tests/server/workspaces/test_sandboxing.py",
    ),
}
SWAPS: dict[type[ast.AST], type[ast.AST]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.And: ast.Or,
    ast.Or: ast.And,
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.FloorDiv,
    ast.FloorDiv: ast.Mult,
    ast.BitOr: ast.BitAnd,
    ast.BitAnd: ast.BitOr,
}


@dataclass(frozen=True, slots=True)
class Mutant:
    """A replacement of a module's text between two byte offsets."""

    module: str
    line: int
    begin: int
    end: int
    before: str
    after: str

    def __str__(self) -> str:
        return f"{self.module}:{self.line}: {self.before[:80]!r} -> {self.after[:80]!r}"


def mutants(module: str) -> list[Mutant]:
    """Return all mutants of a module."""
    text = (ROOT / module).read_bytes()
    starts = [0]
    for line in text.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    found: list[Mutant] = []
    for node in _statements(ast.parse(text)):
        for each, after in _changed(node):
            assert each.end_lineno is not None and each.end_col_offset is not None
            begin = starts[each.lineno - 1] + each.col_offset
            end = starts[each.end_lineno - 1] + each.end_col_offset
            before = text[begin:end].decode()
            if before != after:
                found.append(Mutant(module, each.lineno, begin, end, before, after))
    return found


def _statements(node: ast.AST) -> Iterator[ast.AST]:
    """Yield the nodes that act at run time, except logging."""
    for child in _run(node):
        match child:
            case ast.Expr(value=ast.Constant()) | ast.Import() | ast.ImportFrom() | ast.Assert() | ast.JoinedStr():
                continue
            case ast.If(test=ast.Name(id="TYPE_CHECKING")):
                continue
            case ast.Expr(value=ast.Call(func=ast.Attribute(value=ast.Name(id="log")))):
                continue
            case ast.Assign() | ast.AnnAssign() if isinstance(node, ast.Module):
                continue  # a limit's own value is a choice: tests use its name
            case _:
                yield child
                yield from _statements(child)


def _run(node: ast.AST) -> Iterator[ast.AST]:
    """Yield the parts of a node except annotations."""
    match node:
        case ast.FunctionDef(args=given, body=body) | ast.AsyncFunctionDef(args=given, body=body):
            yield from (*given.defaults, *filter(None, given.kw_defaults), *body)
        case ast.AnnAssign(value=value):
            yield from filter(None, [value])
        case _:
            yield from ast.iter_child_nodes(node)


def _changed(node: ast.AST) -> Iterator[tuple[ast.expr | ast.stmt, str]]:
    """Yield the replaceable parts of a node, and their replacements."""
    match node:
        case ast.Compare(ops=[op], comparators=[right], left=left) if type(op) in SWAPS:
            yield node, ast.unparse(ast.Compare(left, [_swapped(op)], [right]))
        case ast.BoolOp(op=op, values=values):
            yield node, f"({ast.unparse(ast.BoolOp(_swapped(op), values))})"
        case ast.BinOp(left=left, op=op, right=right) if type(op) in SWAPS and not _is_text(left, right):
            yield node, f"({ast.unparse(ast.BinOp(left, _swapped(op), right))})"
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            yield node, f"({ast.unparse(operand)})"
        case ast.Constant(value=bool() as value):
            yield node, repr(not value)
        case ast.Constant(value=int() | float() as value):
            yield node, repr(value + 1)
        case ast.If(test=test) | ast.IfExp(test=test):
            yield test, f"(not ({ast.unparse(test)}))"
        case ast.Return(value=ast.expr() as value) if ast.unparse(value) != "None":
            yield node, "return None"
        case ast.Raise() | ast.Expr(value=ast.Call()) | ast.Expr(value=ast.Await()) | ast.AugAssign() | ast.Delete():
            yield node, "pass"
        case ast.Break():
            yield node, "continue"
        case _:
            pass


def _swapped(op: ast.AST) -> "ast.AST":
    return SWAPS[type(op)]()


def _is_text(*sides: ast.expr) -> bool:
    return any(isinstance(side, ast.JoinedStr) or isinstance(getattr(side, "value", None), str) for side in sides)


def modules(names: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """Return files and their tests."""
    found: dict[str, tuple[str, ...]] = {}
    for name, suite in SUITES.items():
        paths = sorted((ROOT / name).glob("*.py")) if (ROOT / name).is_dir() else [ROOT / name]
        found |= {str(path.relative_to(ROOT)): suite for path in paths}
    return {path: suite for path, suite in found.items() if not names or any(path.startswith(name) for name in names)}


@contextlib.contextmanager
def copied() -> Iterator[Path]:
    """Yield a copy of the repository with an environment for its tests."""
    with tempfile.TemporaryDirectory(prefix="toolgate-mutants-") as folder:
        there = Path(folder)
        listed = subprocess.run(["git", "ls-files", "-z", "-co", "--exclude-standard"], cwd=ROOT, capture_output=True)
        for name in listed.stdout.decode().split("\0"):
            if name and (ROOT / name).exists():
                (there / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(ROOT / name, there / name, follow_symlinks=False)
        subprocess.run(["make", "-s", ".venv/.dev"], cwd=there, check=True, stdout=subprocess.DEVNULL)
        yield there


def passes(there: Path, suite: Sequence[str]) -> bool:
    """Return whether the tests pass, and end."""
    words = [str(there / ".venv/bin/python"), "-m", "pytest", "-x", "-q", *suite]
    environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}  # else two mutants of a second share their bytecode
    tests = subprocess.Popen(
        words, cwd=there, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
    )
    try:
        return tests.wait(SLOWEST) == 0
    except subprocess.TimeoutExpired:
        return False
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(tests.pid, signal.SIGKILL)
        tests.wait()


def tried(there: Path, mutant: Mutant, suite: Sequence[str]) -> bool:
    """Return whether the tests miss it."""
    path = there / mutant.module
    text = path.read_bytes()
    path.write_bytes(text[: mutant.begin] + mutant.after.encode() + text[mutant.end :])
    try:
        return passes(there, suite)
    finally:
        path.write_bytes(text)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__)
    parser.add_argument("modules", nargs="*", metavar="MODULE", help="a file or folder, or how its path begins")
    parser.add_argument("--each", type=int, default=20, help="mutants of a module (20)")
    parser.add_argument("--seed", type=int, default=1, help="which of them (1)")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="no mutant is begun after that")
    asked = parser.parse_args()
    until = time.monotonic() + asked.seconds
    chance = random.Random(asked.seed)
    suites = modules(asked.modules)
    with copied() as there:
        sound = {suite: passes(there, suite) for suite in set(suites.values())}
        for suite in (suite for suite, is_sound in sound.items() if not is_sound):
            print(f"without a mutant these fail, and are left out: {' '.join(suite)}")
        chosen: list[Mutant] = []
        for module in (module for module, suite in suites.items() if sound[suite]):
            found = mutants(module)
            chosen += chance.sample(found, min(asked.each, len(found)))
        chance.shuffle(chosen)
        run, survived = Counter[str](), Counter[str]()
        for mutant in chosen:
            if time.monotonic() > until:
                break
            run[mutant.module] += 1
            if tried(there, mutant, suites[mutant.module]):
                survived[mutant.module] += 1
                print(f"survived: {mutant}", flush=True)
    print(f"{'module':40}{'run':>6}{'noticed':>9}{'survived':>10}")
    for module in sorted(run):
        print(f"{module:40}{run[module]:6}{run[module] - survived[module]:9}{survived[module]:10}")
    print(f"{'all':40}{run.total():6}{run.total() - survived.total():9}{survived.total():10}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
