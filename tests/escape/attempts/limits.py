"""Attempts to exceed the principal's share. Every script is bounded by itself, in case nothing else bounds it."""

import concurrent.futures
from collections.abc import Mapping
from typing import TYPE_CHECKING

from tests.clients.raw_client import eventually
from tests.escape.attempt import BWRAP, EVERYWHERE, Attempt
from tests.escape.attempts.network import NO_PROXY

if TYPE_CHECKING:
    from tests.escape.ground import Ground

NOT_HERE = {"none": "limits are of each process alone there, and root may lift them"}


def responsive(ground: "Ground") -> str:
    """Return whether the other principal is served."""
    return "" if "well" in ground.said("echo well", who="victim") else "others are not served"


def defused(ground: "Ground") -> str:
    """Return whether it can be ended like any task, while its principal goes on."""
    ground.end_tasks()
    return "" if "well" in ground.said("echo well") else "it goes on"


def fork_bomb(ground: "Ground") -> str:
    ground.bash("bomb() { bomb | bomb & }; bomb; sleep 3; echo", timeout=4_000)
    return responsive(ground) or defused(ground)


def python_bomb(ground: "Ground") -> str:
    ground.script(
        "import os, time\nend = time.time() + 3\nwhile time.time() < end:\n    try:\n"
        "        os.fork()\n    except OSError:\n        pass"
    )
    return responsive(ground) or defused(ground)


def flood(ground: "Ground") -> str:
    ground.bash("yes a line of a flood | head -c 120M", timeout=20_000)
    output = sum(path.stat().st_size for path in ground.spool("mallory").glob("*") if path.is_file())
    return responsive(ground) or (f"{output} bytes are kept" if output > 80 * 2**20 else "")


def huge_command(ground: "Ground") -> str:
    result = ground.bash(f"echo {'x' * 2_000_000}")
    return "" if result["isError"] and not responsive(ground) else "it ran"


def many_at_once(ground: "Ground") -> str:
    begun = [ground.call("BackgroundBash", command="sleep 30") for _ in range(20)]
    held = [each["structuredContent"]["task_id"] for each in begun if not each["isError"]]
    for task in held:
        ground.call("KillBgTask", task_id=task)
    return "" if len(held) <= 16 else f"{len(held)} run"


def fills_the_workspace(ground: "Ground") -> str:
    """Write in pieces that take longer than the interval of measurements."""
    script = "for n in $(seq 1 40); do head -c 8M /dev/zero > fill-$n || exit 1; sleep 0.2; done; echo filled"
    result = ground.bash(f"mkdir -p fill && cd fill && {{ {script}; }}", timeout=20_000)
    ground.clear("fill")
    return "it is full" if "filled" in ground.words(result) else ""


def fills_the_inodes(ground: "Ground") -> str:
    script = "for a in $(seq 1 40); do mkdir $a; (cd $a; touch $(seq 1 200)); sleep 0.2; done; echo filled"
    result = ground.bash(f"mkdir -p fill && cd fill && {{ {script}; }}", timeout=20_000)
    ground.clear("fill")
    return "there are 8,000 files" if "filled" in ground.words(result) else ""


def fills_with_removed_files(ground: "Ground") -> str:
    """Removed files stay on the disk while they are open."""
    script = "for n in $(seq 1 30); do exec {fd}> gone-$n && rm gone-$n && head -c 8M /dev/zero >&$fd; sleep 0.2; done"
    result = ground.bash(f"{script}; echo filled", timeout=20_000)
    return "it is full" if "filled" in ground.words(result) else ""


def fills_further(ground: "Ground") -> str:
    """Fill holes made before, by short commands."""
    ground.bash("mkdir -p fill && cd fill && truncate -s 30M hole-1 hole-2 hole-3", timeout=20_000)
    ground.bash(
        "cd fill && for n in $(seq 1 4); do head -c 30M /dev/zero > fill-$n; done; exec sleep 20", timeout=25_000
    )
    for number in (1, 2, 3):
        ground.script(
            f"import mmap\nf = open('fill/hole-{number}', 'r+b')\nm = mmap.mmap(f.fileno(), 0)\n"
            "for at in range(0, len(m), 4096):\n    m[at] = 1"
        )
    held = sum(path.stat().st_blocks * 512 for path in (ground.workspace("mallory") / "fill").glob("hole-*"))
    ground.clear("fill")
    return f"{held} bytes more" if held else ""


def adds_more_files(ground: "Ground") -> str:
    """Add files by short commands: none runs at a measurement."""
    ground.bash("mkdir -p fill && cd fill && touch $(seq 1 1200); exec sleep 20", timeout=25_000)
    for number in range(4):
        ground.bash(f"cd fill && mkdir {number}-d; touch $(seq -f {number}-%g 1 200)")
    found = len(list((ground.workspace("mallory") / "fill").iterdir()))
    ground.clear("fill")
    return f"{found} files" if found > 1300 else ""


def many_commands(ground: "Ground") -> str:
    with concurrent.futures.ThreadPoolExecutor(30) as pool:
        ran = [result for result in pool.map(lambda _: ground.bash("sleep 2"), range(30)) if not result["isError"]]
    return "" if len(ran) <= 24 else f"{len(ran)} ran"


def starves_the_proxy(ground: "Ground") -> str:
    """Open many silent connections, while the other principal sends a request."""
    ground.call(
        "BackgroundBash",
        command='exec /usr/bin/python3 -c "import socket, time\nheld = []\n'
        "for n in range(240):\n    s = socket.socket(); s.settimeout(0.2)\n"
        "    try: s.connect(('127.0.0.1', 3128)); held.append(s)\n"
        "    except OSError: pass\nopen('starving', 'w').close()\ntime.sleep(8)\"",
    )
    assert eventually(lambda: (ground.workspace("mallory") / "starving").exists())
    said = ground.script("proxied('http://10.0.0.1/')", who="victim")
    return "" if " 403 " in said else f"others are not served: {said}"


LIMITS = (
    Attempt(
        "takes more memory than there is for it",
        "pid = os.fork()\nif pid == 0:\n"
        "    data = [bytearray(os.urandom(2**20)) * 32 for _ in range(20)]\n    escaped(len(data))\n"
        "    os._exit(0)\nos.waitpid(pid, 0)",
        alone=True,
        limit="memory",
        untried=NOT_HERE,
    ),
    Attempt(
        "takes more memory that it shares",
        "import mmap\npid = os.fork()\nif pid == 0:\n    room = mmap.mmap(-1, 600 * 2**20)\n"
        "    for at in range(0, len(room), 4096):\n        room[at] = 1\n    time.sleep(4)\n    escaped(len(room))\n"
        "    os._exit(0)\nos.waitpid(pid, 0)",
        alone=True,
        rooted=True,
        limit="memory",
        untried=NOT_HERE,
    ),
    Attempt(
        "takes more memory by files in memory",
        "pid = os.fork()\nif pid == 0:\n    files = [os.memfd_create(str(n)) for n in range(30)]\n"
        "    [os.write(each, bytes(20 * 2**20)) for each in files]\n    time.sleep(4)\n    escaped()\n"
        "    os._exit(0)\nos.waitpid(pid, 0)",
        alone=True,
        rooted=True,
        limit="memory",
        untried=NOT_HERE,
    ),
    Attempt(
        "takes memory that no process has",
        "made = []\ntry:\n    for _ in range(600):\n        made.append(libc.shmget(0, 2**20, 0o1600))\n"
        "        made[-1] < 0 or escaped()\nfinally:\n    [libc.shmctl(each, 0, None) for each in made]",
        limit="memory",
        untried=NOT_HERE,
    ),
    Attempt(
        "takes more memory by many processes",
        "pids = []\nreader, writer = os.pipe()\nfor _ in range(8):\n    pid = os.fork()\n    if pid == 0:\n"
        "        data = bytearray(os.urandom(2**20)) * 96\n        os.write(writer, b'x')\n"
        "        time.sleep(2)\n        os._exit(0)\n    pids.append(pid)\n"
        "codes = [os.waitpid(pid, 0)[1] for pid in pids]\nany(codes) or escaped(codes)",
        alone=True,
        dear=True,
        grouped=True,
        limit="memory",
        untried=NOT_HERE,
    ),
    Attempt(
        "takes more processor time",
        "pid = os.fork()\nif pid == 0:\n    while time.process_time() < 3.5:\n        pass\n"
        "    escaped()\n    os._exit(0)\nos.waitpid(pid, 0)",
        alone=True,
        dear=True,
        limit="cpu",
        untried=NOT_HERE,
    ),
    Attempt(
        "takes more processor time, deaf to the signal of it",
        "pid = os.fork()\nif pid == 0:\n    signal.signal(signal.SIGXCPU, signal.SIG_IGN)\n"
        "    while time.process_time() < 5.5:\n        pass\n"
        "    escaped()\n    os._exit(0)\nos.waitpid(pid, 0)",
        alone=True,
        dear=True,
        limit="cpu",
        untried=NOT_HERE,
    ),
    Attempt(
        "lifts its limit of open files",
        "import resource\nresource.setrlimit(resource.RLIMIT_NOFILE, (9000, 9000))\nescaped()",
        limit="files",
        untried=NOT_HERE,
    ),
    Attempt(
        "opens more files",
        "held = []\nwhile len(held) < 400:\n    held.append(os.open('/dev/null', os.O_RDONLY))\nescaped(len(held))",
        limit="files",
        untried=NOT_HERE,
    ),
    Attempt(
        "starts more processes",
        "pids = []\ntry:\n    while len(pids) < 300:\n        pid = os.fork()\n        if pid == 0:\n"
        "            time.sleep(20)\n            os._exit(0)\n        pids.append(pid)\n"
        "    escaped(len(pids))\n"
        "finally:\n    [os.kill(pid, 9) for pid in pids]\n"
        "    [os.waitpid(pid, 0) for pid in pids]",  # until then they count against the next attempt's limit
        alone=True,
        limit="processes",
        untried=NOT_HERE,
    ),
    Attempt(
        "starts more threads",
        "started = []\nheld = threading.Event()\ntry:\n    while len(started) < 300:\n"
        "        t = threading.Thread(target=held.wait, args=(5,), daemon=True)\n        t.start()\n"
        "        started.append(t)\n    escaped(len(started))\n"
        "except RuntimeError as error:\n    print(error)\nfinally:\n    held.set()",
        alone=True,
        limit="processes",
        untried=NOT_HERE,
    ),
    Attempt(
        "writes a larger file",
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\nwith open('large', 'wb') as f:\n"
        "    f.truncate(40 * 2**20)\nescaped()",
        limit="file-size",
        untried=NOT_HERE,
    ),
    Attempt(
        "reserves room past the end of a file",
        "with open('reserved', 'wb') as f:\n    try:\n"
        "        libc.fallocate(f.fileno(), 1, ctypes.c_long(0), ctypes.c_long(64 * 2**20))\n"
        "        os.fstat(f.fileno()).st_blocks * 512 > 33 * 2**20 and escaped()\n"
        "    finally:\n        os.unlink('reserved')",
        limit="file-size",
        untried=NOT_HERE,
    ),
    Attempt(
        "reserves room in small files",
        "try:\n    for n in range(8):\n        with open(f'reserved-{n}', 'wb') as f:\n"
        "            libc.fallocate(f.fileno(), 0, ctypes.c_long(0), ctypes.c_long(2**21))\n"
        "            os.fstat(f.fileno()).st_blocks and escaped()\n"
        "finally:\n    [os.unlink(p) for p in glob.glob('reserved-*')]",
        limit="workspace",
        untried=NOT_HERE,
    ),
    Attempt(
        "reserves room by ioctl",
        "room = struct.pack('hhqqiI4i', 0, 0, 0, 64 * 2**20, 0, 0, 0, 0, 0, 0)\n"
        "for request in (0x40305828, 0x4030582A, 0x40305839):\n"
        "    with open('reserved-by', 'wb') as f:\n        try:\n"
        "            fcntl.ioctl(f, request, room)\n"
        "        except OSError as error:\n            print('refused:', error)\n"
        "        os.fstat(f.fileno()).st_blocks * 512 > 33 * 2**20 and escaped(hex(request))\n"
        "    os.unlink('reserved-by')",
        limit="file-size",
        untried=NOT_HERE,
    ),
    Attempt(
        "has one byte take gigabytes, by an extent size",
        "hint = struct.pack('IIIII8x', 0x800, 2**28, 0, 0, 0)\n"
        "with open('hinted', 'wb') as f:\n    try:\n"
        "        fcntl.ioctl(f, 0x401C5820, hint)\n        escaped('FS_IOC_FSSETXATTR')\n"
        "    except OSError as error:\n        print('refused:', error)\n"
        "hint = struct.pack('QIIII', 0x800, 2**28, 0, 0, 0)\n"
        "libc.syscall(469, -100, b'hinted', hint, ctypes.c_size_t(len(hint)), 0) == 0 and escaped('file_setattr')\n"
        "os.unlink('hinted')",
        limit="file-size",
        untried=NOT_HERE,
    ),
    Attempt(
        "makes a subvolume, which is not counted",
        "for request in (0x50009401, 0x5000940E, 0x50009417, 0x50009418):\n"
        "    folder = os.open('.', os.O_RDONLY)\n    try:\n"
        "        fcntl.ioctl(folder, request, bytes(1000))\n        escaped(hex(request))\n"
        "    except OSError as error:\n        error.errno == errno.EPERM or escaped(error)\n"
        "    os.close(folder)",
        limit="workspace",
        untried=NOT_HERE,
    ),
    Attempt("fills its workspace", act=fills_the_workspace, alone=True, dear=True, limit="workspace", untried=NOT_HERE),
    Attempt(
        "fills its workspace with files", act=fills_the_inodes, alone=True, dear=True, limit="entries", untried=NOT_HERE
    ),
    Attempt(
        "fills its workspace with removed files",
        act=fills_with_removed_files,
        alone=True,
        dear=True,
        rooted=True,
        limit="workspace",
        untried=NOT_HERE,
    ),
    Attempt(
        "fills a full workspace further", act=fills_further, alone=True, dear=True, limit="workspace", untried=NOT_HERE
    ),
    Attempt(
        "fills a workspace of too many files further",
        act=adds_more_files,
        alone=True,
        dear=True,
        limit="entries",
        untried=NOT_HERE,
    ),
    Attempt("bombs with forks of bash", act=fork_bomb, alone=True, dear=True, limit="processes", untried=NOT_HERE),
    Attempt("bombs with forks of Python", act=python_bomb, alone=True, dear=True, limit="processes", untried=NOT_HERE),
    Attempt("floods the output", act=flood, alone=True, dear=True, stopped=EVERYWHERE),
    Attempt("gives a huge command", act=huge_command, stopped=EVERYWHERE),
    Attempt(
        "gives a program huge arguments",
        "subprocess.run(['true', *['x' * 100_000] * 100])\nescaped()",
        stopped=EVERYWHERE,
    ),
    Attempt("starts more commands", act=many_commands, alone=True, limit="commands", untried=NOT_HERE),
    Attempt("starts more tasks", act=many_at_once, alone=True, limit="background", untried=NOT_HERE),
)
PROXY = (
    Attempt("takes all connections of the proxy", act=starves_the_proxy, alone=True, stopped=BWRAP, untried=NO_PROXY),
)

MEMORY = tuple(
    Attempt(
        f"fills {folder}",
        f"with open({folder!r} + '/' + E['NAME'] + '-mine', 'wb') as f:\n    try:\n"
        "        for _ in range(12):\n            f.write(bytes(2**21))\n            f.flush()\n"
        "        for n in range(8):\n"
        f"            with open({folder!r} + '/' + E['NAME'] + f'-{{n}}', 'wb') as g:\n"
        f"                g.write(bytes(2**22))\n        escaped()\n"
        f"    finally:\n        [os.unlink(p) for p in glob.glob({folder!r} + '/' + E['NAME'] + '-*')]",
        stopped=frozenset({"bwrap"}),
        alone=True,
        limit="tmp",
    )
    for folder in ("/tmp", "/var/tmp", "/dev/shm")
)

KERNEL, SERVER = "kernel: {}", "server, before it begins"
COUNTED = "counted, then {}"
OVER = "kernel: `RLIMIT_FSIZE`, Landlock"
# By limit: what enforces it at bwrap, at uid, and at both without control groups. Usage is measured a second apart or
# more, and what runs is ended; the server counts the commands it starts.
HELD_BY: Mapping[str, tuple[str, str, str]] = {
    "cpu": (KERNEL.format("`RLIMIT_CPU`"),) * 3,
    "memory": (
        KERNEL.format("memory group"),
        KERNEL.format("memory group"),
        "kernel: `RLIMIT_DATA`, of each process; what is shared is counted",
    ),
    "processes": (
        KERNEL.format("pids group"),
        KERNEL.format("pids group"),
        KERNEL.format("`RLIMIT_NPROC`"),
    ),
    "files": (KERNEL.format("`RLIMIT_NOFILE`"),) * 3,
    "file-size": (KERNEL.format("`RLIMIT_FSIZE`, filter"),) * 3,
    "workspace": (COUNTED.format(OVER),) * 3,
    "entries": (COUNTED.format("kernel: Landlock"),) * 3,
    "tmp": (KERNEL.format("size of the mount"), "-", "as with them"),
    "commands": (SERVER,) * 3,
    "background": (SERVER,) * 3,
    "age": ("server, by a timer",) * 3,
    "idle": ("server, by a timer",) * 3,
    "calls": (SERVER,) * 3,
}
ELSEWHERE = {  # attacks that need another server
    "age": ("tests/tools/workspace/test_limits.py", "test_a_detached_process_of_a_background_task_has_its_age"),
    "idle": (
        "tests/server/workspaces/test_idle_workspaces.py",
        "test_people_at_rest_have_no_descriptor_and_no_control_group",
    ),
    "calls": (
        "tests/server/base/limits/test_rate_limit.py",
        "test_no_minute_has_more_than_the_limit_wherever_it_begins",
    ),
}
