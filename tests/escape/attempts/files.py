"""Attempts on other files: the server's state, other principals' workspaces, the machine's."""

from typing import TYPE_CHECKING

from tests.escape.attempt import BWRAP, Attempt

if TYPE_CHECKING:
    from tests.escape.ground import Ground

NONE = frozenset({"none"})


def makes_a_file(ground: "Ground") -> str:
    """Write a file; inside, the same path may be in a private folder."""
    path = ground.signed.site.state / "made"
    ground.bash(f"echo > {path}")
    return "it is there" if path.exists() else ""


RUNS_ON = {"none": "it would take the workspace away from the attempts that follow"}

STATE = (
    Attempt("lists the state folder", "[escaped(name) for name in os.listdir(E['STATE']) if name == 'state.db']"),
    Attempt(
        "reads the database",
        "with open(E['STATE'] + '/state.db', 'rb') as f:\n    b'SQLite' in f.read(16) and escaped()",
    ),
    Attempt(
        "reads the signing key", "with open(E['STATE'] + '/keys/signing', 'rb') as f:\n    f.read(9) and escaped()"
    ),
    Attempt("reads the database's journal", "with open(E['STATE'] + '/state.db-wal', 'rb') as f:\n    escaped()"),
    Attempt("reads the state by a link", "os.symlink(E['SECRET'], 'by-link')\nsays('by-link')"),
    Attempt(
        "reads the state by ..",
        "says('/'.join(['..'] * (os.getcwd().count('/'))) + E['SECRET'])",
    ),
    Attempt("reads the state by a hard link", "os.link(E['SECRET'], 'hard')\nsays('hard')", unsure=frozenset({"none"})),
    Attempt("reads the state through /proc/1/root", "says('/proc/1/root' + E['SECRET'])", unsure=NONE),
    Attempt(
        "reads the state by every process's root and folder",
        "for pid in others():\n    for way in ('root', 'cwd'):\n        try:\n"
        "            says(f'/proc/{pid}/{way}' + E['SECRET'])\n        except OSError:\n            pass",
    ),
    Attempt("reads a file by its handle", "taken('open_by_handle_at', -100, 0, 0)"),
    Attempt("writes into the state folder", "writable(E['STATE'] + '/state.db')"),
    Attempt("makes a file in the state folder", act=makes_a_file),
    Attempt(
        "puts a link in the workspace's place",
        "os.rename(E['ME'], E['ME'] + '.old')\nos.symlink(E['STATE'], E['ME'])\nescaped()",
        untried=RUNS_ON,
    ),
    Attempt("writes into its own spool", "open(E['SPOOL'] + '/last-id', 'w').close()\nescaped()", untried=RUNS_ON),
    Attempt("makes a folder in its own spool", "os.mkdir(E['SPOOL'] + '/made')\nescaped()"),
    Attempt(
        "writes into the server's program",
        "writable('/.toolgate/supervisor.py' if os.path.exists('/.toolgate') else E['SUPERVISOR'])",
    ),
    Attempt("writes into the interpreter", "writable(first(E['PYTHON'], '/usr/lib/python3/dist-packages'))"),
    Attempt(
        "makes a file beside the server's program",
        "os.close(os.open(os.path.dirname(E['SUPERVISOR']) + '/made', os.O_WRONLY | os.O_CREAT))\n"
        "os.unlink(os.path.dirname(E['SUPERVISOR']) + '/made')\nescaped()",
    ),
)

MACHINE = (
    Attempt("reads a file of root's", "says(E['SECRET'])"),
    Attempt("reads /etc/shadow", "with open('/etc/shadow') as f:\n    'root:' in f.read() and escaped()"),
    Attempt(
        "reads the keys of the machine's ssh",
        "keys = glob.glob('/etc/ssh/ssh_host_*_key')\n"
        "print(ABSENT) if not keys else escaped(len(open(keys[0]).read()))",
        unsure=NONE,
    ),
    Attempt("reads root's home", "escaped(open('/root/.profile').read(1))", unsure=NONE),
    Attempt("writes /etc/ld.so.cache", "writable('/etc/ld.so.cache')"),
    Attempt("writes /etc/passwd", "writable('/etc/passwd')", unsure=frozenset()),
    Attempt(
        "makes a file in /etc",
        "os.close(os.open('/etc/ld.so.preload.try', os.O_WRONLY | os.O_CREAT))\n"
        "os.unlink('/etc/ld.so.preload.try')\nescaped()",
    ),
    Attempt(
        "makes a file in /usr/local/bin",
        "os.close(os.open('/usr/local/bin/made-up', os.O_WRONLY | os.O_CREAT))\n"
        "os.unlink('/usr/local/bin/made-up')\nescaped()",
    ),
)

SEEN = (
    Attempt("reads a file that every user may read", "says(E['OPEN'])", stopped=BWRAP),
    Attempt(
        "lists /run",
        "names = os.listdir('/run')\nnames and escaped(names)",
        stopped=BWRAP,
        unsure=frozenset({"uid", "none"}),
    ),
    Attempt(
        "lists /home",
        "names = os.listdir('/home')\nescaped(names) if names else print(ABSENT)",
        stopped=BWRAP,
        unsure=frozenset({"uid", "none"}),
    ),
    Attempt("reads the machine's users", "'\\nwww-data:' in open('/etc/passwd').read() and escaped()", stopped=BWRAP),
    Attempt("looks into /sys", "os.listdir('/sys') and escaped()", stopped=BWRAP),
    Attempt("learns the machine's name", "socket.gethostname() == E['HOST'] and escaped()", stopped=BWRAP),
    Attempt("reads the kernel's log", "taken('syslog', 2, 0, 0)", unsure=NONE),
    Attempt(
        "looks at the addresses of the kernel",
        "any(not line.startswith('0' * 12) for line in open('/proc/kallsyms')) and escaped()",
        unsure=NONE,
    ),
)

NEIGHBOURS = (
    Attempt("lists another's workspace", "os.listdir(E['VICTIM']) and escaped()"),
    Attempt("reads another's file", "says(E['VICTIM'] + '/secret')"),
    Attempt("writes another's file", "writable(E['VICTIM'] + '/secret')"),
    Attempt("reads another's file by a link", "os.symlink(E['VICTIM'] + '/secret', 'theirs')\nsays('theirs')"),
    Attempt("reads another's file by ..", "says('../' + os.path.basename(E['VICTIM']) + '/secret')"),
    Attempt("lists the workspaces", "len(os.listdir(os.path.dirname(E['ME']))) > 1 and escaped()"),
    Attempt("reads another's output", "[says(path) for path in (E['VICTIM_OUTPUT'],)]"),
    Attempt(
        "reads another's environment", "'MINE=' in open(f\"/proc/{E['VICTIM_PID']}/environ\").read() and escaped()"
    ),
    Attempt(
        "reads another's memory through /proc",
        "os.close(os.open(f\"/proc/{E['VICTIM_PID']}/mem\", os.O_RDONLY))\nescaped()",
    ),
    Attempt("signals another's process", "os.kill(int(E['VICTIM_PID']), signal.SIGCONT)\nescaped()"),
    Attempt("goes into another's folder by its process", "os.chdir(f\"/proc/{E['VICTIM_PID']}/cwd\")\nsays('secret')"),
    Attempt(
        "traces another's process",
        # PTRACE_SEIZE: PTRACE_ATTACH leaves it stopped, if its tracer ends before it has stopped
        "system_call('ptrace', 0x4206, int(E['VICTIM_PID']), 0, 0)\nescaped()",
    ),
    Attempt(
        "binds another's workspace into its own",
        "os.mkdir('bound')\nsystem_call('mount', E['VICTIM'].encode(), b'bound', 0, 4096, 0)\n"
        "try:\n    says('bound/secret')\nfinally:\n    system_call('umount2', b'bound', 2)",
    ),
)

BESIDE = (
    Attempt("sees another's processes", "os.path.exists(f\"/proc/{E['VICTIM_PID']}\") and escaped()", stopped=BWRAP),
    Attempt(
        "reads another's command line",
        "b'secret-word' in open(f\"/proc/{E['VICTIM_PID']}/cmdline\", 'rb').read() and escaped()",
        stopped=BWRAP,
    ),
    Attempt("reads another's file in /tmp", "says('/tmp/' + E['NAME'])", stopped=BWRAP),
    Attempt("reads another's file in /dev/shm", "says('/dev/shm/' + E['NAME'])", stopped=BWRAP),
    Attempt("reads another's file in /var/tmp", "says('/var/tmp/' + E['NAME'])", stopped=BWRAP),
    Attempt("connects to another's abstract socket", "hears('\\0' + E['NAME'])", stopped=BWRAP),
    Attempt(
        "attaches another's shared memory",
        "libc.shmat.restype = ctypes.c_void_p\n"
        "id = libc.shmget(int(E['KEY']), 0, 0)\n"
        "print('none') if id < 0 else print(ctypes.string_at(libc.shmat(id, None, 0o10000)).decode())",
        stopped=BWRAP,
    ),
    Attempt(
        "takes another's message",
        "id = libc.msgget(int(E['KEY']), 0)\nroom = ctypes.create_string_buffer(300)\n"
        "got = libc.msgrcv(id, room, 200, 0, 0o4000)\nprint(room.raw[8:max(8, 8 + got)].decode(errors='replace'))",
        stopped=BWRAP,
    ),
    Attempt(
        "reads another's message queue",
        "mq = system_call('mq_open', E['NAME'].encode(), os.O_RDONLY | os.O_NONBLOCK, 0, 0)\n"
        "room = ctypes.create_string_buffer(8192)\nsystem_call('mq_timedreceive', mq, room, 8192, 0, 0)\n"
        "print(room.value.decode())",
        stopped=BWRAP,
    ),
    Attempt("connects to another's port", "hears(('127.0.0.1', int(E['VICTIM_PORT'])), socket.AF_INET)"),
)
