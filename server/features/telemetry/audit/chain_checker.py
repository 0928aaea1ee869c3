"""Check the lines of a chain of the audit log, wherever they are stored."""

import hashlib

import msgspec

from toolgate.server.state.audit.entry import AuditLink, ChainKey, DamagedLineError, parse_line


class AuditFinding(msgspec.Struct, frozen=True):
    """`place` is a file and the number of a line. If `is_harmless`, the finding is no sign of tampering."""

    place: str
    text: str
    is_harmless: bool = False


class AuditVerdict(msgspec.Struct):
    """What was found. `first` and `newest` are lines, None if there are none."""

    lines: int = 0
    files: int = 0
    first: AuditLink | None = None
    newest: AuditLink | None = None
    findings: list[AuditFinding] = msgspec.field(default_factory=list[AuditFinding])

    chains: int = 0  # in a database

    @property
    def is_intact(self) -> bool:
        return all(finding.is_harmless for finding in self.findings)

    def add_fault(self, where: str, text: str) -> None:
        self.findings.append(AuditFinding(where, text))

    def add_remark(self, where: str, text: str) -> None:
        self.findings.append(AuditFinding(where, text, is_harmless=True))


class ChainChecker:
    """Checks the lines of one chain in their order. `newest` is the line before the first one, if it is known."""

    def __init__(self, verdict: AuditVerdict, key: ChainKey, newest: AuditLink | None = None) -> None:
        self.newest = newest
        self._verdict = verdict
        self._key = key
        self._damaged: tuple[str, bytes] | None = None  # the line before: where, what

    def check_line(self, where: str, line: bytes) -> AuditLink | None:
        """Return the line's link, or None for a damaged one."""
        try:
            link = parse_line(line, self._key)
        except DamagedLineError:
            self.report_damaged()
            self._damaged = (where, line)
            return None
        self._verdict.lines += 1
        self._note(where, link)
        self._follow(where, link)
        return link

    def report_damaged(self) -> None:
        """Report a damaged line that no note has explained."""
        if self._damaged is not None:
            where, _ = self._damaged
            self._verdict.add_fault(where, "the line was changed or put in, or written under another key")
            self._damaged = None

    def _note(self, where: str, link: AuditLink) -> None:
        match link.event:
            case "headless":
                text = f"at {link.time} the head was missing or damaged: lines before may be missing"
                self._verdict.add_fault(where, text)
            case "gap":
                text = f"up to {link.time}, {link.about['calls']} calls could not be recorded"
                self._verdict.add_remark(where, text)
            case "torn":
                self._explain_torn(link)
            case _:
                pass

    def _explain_torn(self, link: AuditLink) -> None:
        if self._damaged is not None:
            where, line = self._damaged
            if hashlib.sha256(line).hexdigest() == link.about["digest"]:
                self._verdict.add_remark(where, f"torn: its writer died; repaired at {link.time}")
                self._damaged = None

    def _follow(self, where: str, link: AuditLink) -> None:
        before, was_damaged = self.newest, self._damaged is not None
        self.report_damaged()
        if before is not None and link.seq <= before.seq:
            text = f"line {link.seq} is out of order: it comes after line {before.seq}"
            self._verdict.add_fault(where, text)
            return
        if before is not None and link.seq > before.seq + 1 + was_damaged:
            self._verdict.add_fault(where, f"{format_span(before.seq + 1, link.seq - 1)} missing before it")
        elif before is not None and link.seq == before.seq + 1 and link.prev != before.hash:
            text = f"line {link.seq} does not follow the line {before.seq} that is before it"
            self._verdict.add_fault(where, text)
        self.newest = link


def format_span(first: int, last: int) -> str:
    return f"line {first} is" if first == last else f"lines {first} to {last} are"
