"""Start commands and end their process trees, in processes of its own.

    server ── zygote ──┬── supervisor ── the command ── whatever it starts
                       ├── supervisor ── …
                       └── the supervisor that waits for the next command

A program, run as `python -I -S supervisor.py FD [FOLDER]`: FD is a unix stream socket, FOLDER is where psutil lies on
systems whose /proc does not list children. Standard library only, and little of it: this is the first command's wait.

The zygote exists because forking a small process is cheap and forking the server is not. It keeps one supervisor
waiting on FD for a byte with two descriptors, a control socket and the write end of a pipe for the output, or three,
the last for the input, or four, the last for the standard output, which is then apart; the end of FD ends it, and so
does a byte alone if it has had a command: the next is another person's, or has other limits. It adopts, and kills, what
a killed supervisor leaves behind, and wakes a stopped one: commands may do either to it, as they run as the same user.
The server wakes it; so does its death.

Commands may also change the limits, the priority and the processors of either, which later commands would inherit. A
system call filter can't tell a command's own child from its supervisor. So a changed supervisor starts no command: the
next one does. A changed zygote ends, in a sandbox only when nothing runs there, and the server starts another.

A supervisor adopts every orphan of its tree (PR_SET_CHILD_SUBREAPER), so the tree is gone when it has no children.
It ignores polite signals and sits in a session of its own. When its tree ends soon it waits for the next command;
else it has the zygote start another, and ends with its tree. On its control socket it

    reads   a length (4 bytes, big endian) and that many bytes of fields, NUL between them: directory, directory to
            fall back to, resource limits as `NUMBER=VALUE …`, `removing` for what may write no file, `brief` for what
            probably ends soon and the words of a command that may change nothing (read_only.py), number of arguments,
            arguments…, NAME=value…; then lines:
            `terminate SECONDS`     SIGTERM to the whole tree, SIGKILL to what is left after so long
            end of file             SIGKILL to the whole tree now: the server is gone, however it went
    writes  `here PID`              before it starts anything
            `started 0|1`           1: in the directory to fall back to; of a `brief` command with its end, if it ends
                                    within BRIEF: each message wakes the server
            `failed TEXT`           nothing was started
            `exited CODE LEFT`      the command ended, by signal N when CODE is -N, and left so many processes
            `gone`                  nothing is left
"""

import gc
import os
import select
import signal
import socket
import struct
import sys
import time
from typing import TYPE_CHECKING, NoReturn

if TYPE_CHECKING or __package__:
    from toolgate.tools.workspace.processes import channel_slot, command_start, own_limits, process_tree, read_only
else:  # a program has no package: the files lie beside this one
    sys.path.insert(0, os.path.dirname(__file__))
    import channel_slot
    import command_start
    import own_limits
    import process_tree
    import read_only

    del sys.path[0]

POLITE = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)
IGNORED_SIGNALS = (*POLITE, signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU)
BRIEF_WORD = b"brief"
AGAIN, AGAIN_MOST = 0.02, 1.0  # seconds between sweeps for what SIGKILL did not end; it grows to spare the machine
GIVE_UP = 10.0  # seconds: what can't be killed when the server is gone (another user's process) is left behind
BRIEF = 0.003  # seconds that the start of a command waits for its end: what a shell takes for one small program
QUICK = 0.05  # seconds after which a command is waited for no longer: the next gets another supervisor
SETTLE = 0.5  # seconds that a changed zygote waits for the last of its supervisors
STRAYS = 0.5  # seconds between looks for orphans where the system can't hand them to us (not Linux)


def serve(fd: int, *, is_shared: bool = False) -> NoReturn:
    """Be the zygote, and in its forks the supervisors, to the end. `is_shared`: it has commands of several people."""
    for number in IGNORED_SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    gc.disable()
    channel = socket.socket(fileno=fd)
    channel.set_inheritable(False)
    command_start.dump_no_core()
    relay = socket.socketpair()
    original = own_limits.read_own_limits()
    tell = zygote(channel, original, is_shared=is_shared)
    if tell is not None:
        supervise(channel_slot.ChannelSlot(channel, tell, relay, original))
    os._exit(0)  # no clean-up: it would touch, and so copy, the memory shared with the zygote


def zygote(channel: socket.socket, original: "own_limits.OwnLimits", *, is_shared: bool) -> int | None:
    """Keep one supervisor waiting. Return in each the pipe for START_NEXT, and in the zygote None at the end."""
    process_tree.become_subreaper()
    server = os.getppid()
    news, tell = wake_on_child()
    os.set_blocking(news, True)
    supervisors: set[int] = set()
    waiting = 0
    while True:
        if not waiting:
            if own_limits.read_own_limits() != original and (is_shared or have_ended(supervisors)):
                break
            waiting = fork_when_possible(channel)
            if waiting == 0:
                os.close(news)
                return tell
            if waiting < 0:
                break
            supervisors.add(waiting)
        data = os.read(news, 4096)
        reap_supervisors(supervisors)
        if channel_slot.START_NEXT in data:
            waiting = 0
        elif waiting not in supervisors:  # it was killed, or saw the end of the channel
            if has_ended(channel):
                break
            waiting = 0
    process_tree.send(signal.SIGCONT, supervisors)
    while supervisors and os.getppid() != server:  # it was killed: their trees end now, and until then we are needed
        os.read(news, 4096)
        reap_supervisors(supervisors)
    return None


def have_ended(supervisors: set[int]) -> bool:
    """Return whether all supervisors have ended, or do so within SETTLE."""
    until = time.monotonic() + SETTLE
    while supervisors and time.monotonic() < until:
        time.sleep(AGAIN)
        reap_supervisors(supervisors)
    return not supervisors


def fork_when_possible(channel: socket.socket) -> int:
    """`fork`, as soon as there is room for a process; -1 when the channel has ended before that."""
    while True:
        try:
            return os.fork()
        except OSError:  # commands have taken all there are
            if has_ended(channel):
                return -1
            time.sleep(AGAIN)


def has_ended(channel: socket.socket) -> bool:
    try:
        return not channel.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
    except BlockingIOError:
        return False


def reap_supervisors(supervisors: set[int]) -> None:
    """Reap what ended, wake what was stopped, and end orphans of a supervisor that was killed."""
    try:
        while (news := os.waitpid(-1, os.WNOHANG | os.WUNTRACED))[0] != 0:
            if os.WIFSTOPPED(news[1]):
                process_tree.send(signal.SIGCONT, {news[0]} & supervisors)
            else:
                supervisors.discard(news[0])
    except ChildProcessError:
        return
    if process_tree.CHILDREN_LISTED:
        for orphan in set(process_tree.children(os.getpid())) - supervisors:
            process_tree.send(signal.SIGKILL, [orphan, *process_tree.descendants(orphan)])


def supervise(slot: "channel_slot.ChannelSlot") -> None:
    """Wait for commands and see them through, one after another. Before the first, a kill of the zygote's group kills
    this too."""
    process_tree.become_subreaper()
    wake, _ = wake_on_child()
    earlier: socket.socket | None = None
    while len(descriptors := slot.wait_command(is_first=earlier is None)) >= 2:
        if earlier is None:
            os.setsid()
        else:
            wait_closed(earlier)  # until then the server may take this process for that command's supervisor
        if slot.is_readable():
            slot.leave()
        earlier = socket.socket(fileno=descriptors[0])
        if not CommandSupervisor(earlier, order_streams(*descriptors[1:]), wake, slot).run():
            return


def order_streams(output: int, stdin: int | None = None, stdout: int | None = None) -> list[int]:
    """Return the standard output, error and, if there is one, input of a command."""
    return [output if stdout is None else stdout, output, *([] if stdin is None else [stdin])]


def wait_closed(control: socket.socket) -> None:
    try:
        while control.recv(4096):
            pass
    except OSError:  # with words of ours unread
        pass
    control.close()


class Supervisor:
    """The tree of `shell`. `deadline` is when SIGKILL is due; None while the tree may live."""

    def __init__(self, control: socket.socket, wake: int) -> None:
        self.control = control
        self.wake = wake
        self.unsent = ""  # lines that the server is told with the next one
        self.shell = 0
        self.heard = b""
        self.deadline: float | None = None
        self.again = AGAIN
        self.abandoned: float | None = None  # when the server went

    def watch(self) -> None:
        """Until the tree is gone."""
        poller = select.poll()
        poller.register(self.wake, select.POLLIN)
        poller.register(self.control, select.POLLIN)
        while self.reap():
            for fd, _ in poller.poll(self.patience()):
                if fd == self.wake:
                    os.read(self.wake, 4096)
                elif not self.listen():
                    poller.unregister(self.control)
            now = time.monotonic()
            if self.abandoned is not None and now > self.abandoned + GIVE_UP:
                return
            if self.deadline is not None and now >= self.deadline:
                process_tree.kill(self.tops)
                self.deadline = now + self.again
                self.again = min(self.again * 2, AGAIN_MOST)

    def patience(self) -> float | None:
        """Milliseconds that nothing but news need be waited for."""
        if self.deadline is not None:
            return max(0.0, self.deadline - time.monotonic()) * 1000 + 1
        return None if process_tree.LINUX else STRAYS * 1000

    def listen(self) -> bool:
        """Obey what the server says; false when it is gone."""
        try:
            data = self.control.recv(4096)
        except OSError:
            data = b""
        if not data:
            self.abandoned = self.deadline = time.monotonic()
            return False
        *lines, self.heard = (self.heard + data).split(b"\n")
        for line in lines:
            self.terminate(float(line.split()[1]))  # nothing else is ever said
        return True

    def terminate(self, grace: float) -> None:
        """Ask the tree to end, and set when it must. A second call may only shorten that."""
        deadline = time.monotonic() + grace
        if self.deadline is None:
            members = self.members()
            process_tree.send(signal.SIGTERM, members)
            process_tree.send(signal.SIGCONT, members)  # a stopped process would not notice
            self.deadline = deadline
        self.deadline = min(self.deadline, deadline)

    def reap(self) -> bool:
        """Bury the dead, and report the command when it is among them, and the tree's end. Return whether it lives."""
        code, alive = None, True
        try:
            while (ended := os.waitpid(-1, os.WNOHANG))[0] != 0:
                if ended[0] == self.shell:
                    code = os.waitstatus_to_exitcode(ended[1])
        except ChildProcessError:
            alive = not process_tree.LINUX and bool(self.members())
        if code is not None:
            self.say(f"exited {code} {len(self.members())}" if alive else f"exited {code} 0\ngone")  # wakes it once
        elif not alive:
            self.say("gone")
        return alive

    def tops(self) -> list[int]:
        return process_tree.children(os.getpid()) if process_tree.CHILDREN_LISTED else self.members()

    def members(self) -> list[int]:
        members = process_tree.descendants(os.getpid())
        return members if process_tree.LINUX else members + process_tree.find_strays(self.shell, members)

    def say(self, line: str) -> bool:
        """False when the server is gone, which `listen` sees too."""
        self.unsent += f"{line}\n"
        return self.send_lines()

    def send_lines(self) -> bool:
        """Send what waits; false when the server is gone."""
        lines, self.unsent = self.unsent, ""
        try:
            self.control.sendall(os.fsencode(lines))
        except OSError:
            return False
        return True


class CommandSupervisor(Supervisor):
    """The tree of a command, started from a `slot` that it keeps while the command may be a quick one."""

    def __init__(self, control: socket.socket, streams: list[int], wake: int, slot: "channel_slot.ChannelSlot") -> None:
        super().__init__(control, wake)
        self.streams = streams  # for 1, 2 and, if it has input, 0
        self.slot = slot
        self.is_brief = False

    def run(self) -> bool:
        """Return whether the next command may run under this supervisor too."""
        if not self.say(f"here {os.getpid()}"):
            return False  # the server gave us up, and may have the command started by another
        request = self.request()
        if request is None:
            return False
        try:
            fell_back = self.spawn(*request)
        except OSError as error:
            self.say("failed " + " ".join(str(error.strerror).splitlines()))
            return False
        self.unsent = f"started {fell_back:d}\n"
        self.see_through()
        return self.deadline is None and self.slot.is_free()

    def see_through(self) -> None:
        """Watch the tree, and leave the slot when something else is to be done or the command is not quick."""
        if not (self.is_brief and self.slot.is_held):
            self.send_lines()
        if self.slot.is_held:
            poller = select.poll()
            for each in (self.wake, self.control, self.slot.channel):
                poller.register(each, select.POLLIN)
            begun = time.monotonic()
            while self.reap():
                until = begun + (BRIEF if self.unsent else QUICK)
                ready = poller.poll(max(0.0, until - time.monotonic()) * 1000)
                if not ready and self.unsent:
                    self.send_lines()
                elif [fd for fd, _ in ready] == [self.wake]:
                    os.read(self.wake, 4096)
                else:
                    break
            else:
                return
            self.slot.leave()
            if self.unsent:
                self.send_lines()
        self.watch()

    def request(self) -> list[list[bytes]] | None:
        """Directories, limits, arguments, environment; None when the server went before it had said."""
        size = self.receive(4)
        fields = self.receive(struct.unpack("!I", size)[0]).split(b"\0") if size else []
        if len(fields) < 4:
            return None
        count = int(fields[3])
        return [fields[:2], fields[2].split(), fields[4 : 4 + count], fields[4 + count :]]

    def receive(self, size: int) -> bytes:
        """Exactly `size` bytes, or none."""
        data = bytearray()
        while len(data) < size:
            try:
                piece = self.control.recv(size - len(data))
            except OSError:
                return b""
            if not piece:
                return b""
            data += piece
        return bytes(data)

    def spawn(self, directories: list[bytes], limits: list[bytes], argv: list[bytes], environment: list[bytes]) -> bool:
        """Start the command; true when in the second directory. Raises OSError: nothing runs."""
        fell_back = command_start.enter(directories)
        limits, confinement = read_only.split(limits)
        if BRIEF_WORD in limits:
            limits.remove(BRIEF_WORD)
            self.is_brief = True
        self.slot.apply_limits(limits, directories[1])
        variables = {name: value for name, _, value in (entry.partition(b"=") for entry in environment)}
        self.shell = command_start.spawn(argv, variables, self.streams, confinement)
        for each in set(self.streams):
            os.close(each)
        if limits:
            command_start.raise_oom_score(self.shell)
        os.chdir("/")  # hold no directory that the command may want to remove or unmount
        return fell_back


def wake_on_child() -> tuple[int, int]:
    """A pipe that becomes readable when a child ends: its read and write ends."""
    reader, writer = os.pipe()
    os.set_blocking(reader, False)
    os.set_blocking(writer, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    return reader, writer


if __name__ == "__main__":
    sys.path.extend(sys.argv[2:])
    serve(int(sys.argv[1]), is_shared=True)
