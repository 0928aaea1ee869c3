"""Attempts on the kernel: system calls and files of known escapes."""

from tests.escape.attempt import Attempt

NONE = frozenset({"none"})


def call(name: str, arguments: str, does: str, **how: object) -> Attempt:
    return Attempt(does, f"taken({name!r}, {arguments})", unsure=NONE, **how)  # type: ignore[arg-type]


MOUNTS = (
    call("mount", "b'none', b'/nowhere', b'tmpfs', 0, 0", "mounts"),
    call("mount", "0, b'/', 0, 0x1000 | 0x20 | 0, 0", "remounts"),
    call("umount2", "b'/nowhere', 2", "unmounts"),
    call("pivot_root", "b'/nowhere', b'/nowhere'", "changes the root of all"),
    call("chroot", "b'/nowhere'", "changes its own root"),
    call("fsopen", "0, 0", "mounts by the new calls"),
    call("open_tree", "-100, b'/', 1", "copies a tree of mounts"),
    call("move_mount", "-1, b'', -1, b'', 4", "moves a mount"),
    call("mount_setattr", "-100, b'/', 0, 0, 0", "makes a mount writable"),
    call("swapon", "b'/nowhere', 0", "swaps"),
    call("quotactl", "0, 0, 0, 0", "sets quotas"),
)

NAMESPACES = (
    *(
        Attempt(f"unshares its {what}", f"system_call('unshare', {flag})\nescaped()", unsure=NONE)
        for what, flag in (
            ("users", 0x1000_0000),
            ("mounts", 0x0002_0000),
            ("processes", 0x2000_0000),
            ("network", 0x4000_0000),
            ("shared memory", 0x0800_0000),
            ("name", 0x0400_0000),
            ("control groups", 0x0200_0000),
            ("clock", 0x0000_0080),
        )
    ),
    Attempt(
        "clones into a user namespace",
        "pid = system_call('clone', 0x1000_0000 | 17, 0, 0, 0, 0)\nif pid == 0:\n    os._exit(0)\n"
        "os.waitpid(pid, 0)\nescaped()",
        unsure=NONE,
    ),
    Attempt(
        "clones into a user namespace by clone3",
        "room = struct.pack('QQQQQQQQ', 0x1000_0000, 0, 0, 0, 17, 0, 0, 0)\npid = system_call('clone3', room, 64)\n"
        "if pid == 0:\n    os._exit(0)\nos.waitpid(pid, 0)\nescaped()",
        unsure=NONE,
    ),
    Attempt(
        "enters the namespaces of the first process",
        "for kind in ('mnt', 'pid', 'user', 'net', 'ipc', 'uts', 'cgroup'):\n    try:\n"
        "        fd = os.open('/proc/1/ns/' + kind, os.O_RDONLY)\n"
        "        system_call('setns', fd, 0)\n        escaped(kind)\n"
        "    except OSError as error:\n        print(error)",
        unsure=NONE,
    ),
    call("setns", "-1, 0", "enters a namespace"),
    Attempt(
        "uses unshare(1) to be root",
        "exec unshare --user --map-root-user --mount sh -c 'mount -t tmpfs none /mnt && echo $ESCAPED'",
        bash=True,
        unsure=NONE,
    ),
)

CALLS = (
    call("add_key", "b'user', 0, 0, 0, 0", "adds a kernel key"),
    call("keyctl", "99, 0, 0, 0, 0", "reads kernel keys"),
    call("request_key", "0, 0, 0, 0", "asks for a kernel key"),
    call("bpf", "99, 0, 0", "loads a BPF program"),
    call("userfaultfd", "0xffff", "handles page faults itself"),
    call("perf_event_open", "0, 0, -1, -1, 0", "counts performance events"),
    call("io_uring_setup", "0, 0", "queues calls past the filter"),
    call("fanotify_init", "0xffffffff, 0", "watches all files"),
    call("init_module", "0, 0, 0", "loads a kernel module"),
    call("finit_module", "-1, b'', 0xff", "loads a kernel module from a file"),
    call("delete_module", "b'', 0", "removes a kernel module"),
    call("kexec_load", "0, 17, 0, 0xffff", "loads another kernel"),
    call("name_to_handle_at", "-100, b'/nowhere', 0, 0, 0xffff", "makes a handle of a file"),
    call("clock_settime", "0, 0", "sets the clock"),
    call("settimeofday", "1, 0", "sets the time"),
    call("adjtimex", "0", "adjusts the clock"),
    call("sethostname", "0, -1", "names the machine"),
    call("setdomainname", "0, -1", "names its domain"),
    call("acct", "b'/nowhere'", "has processes accounted"),
    call("reboot", "0, 0, 0, 0", "restarts the machine"),
    call("iopl", "4", "takes the machine's ports"),
    call("modify_ldt", "0, 0, 0", "changes its segments"),
    call("memfd_secret", "0xff", "hides memory from the kernel"),
)

CHANNELS = (
    *(
        Attempt(
            f"opens a socket of the family {name}",
            f"socket.socket({family}, {kind}, {protocol}).close()\nescaped()",
            unsure=NONE,
        )
        for name, family, kind, protocol in (
            ("PACKET", 17, 3, 768),
            ("VSOCK", 40, 1, 0),
            ("ALG", 38, 5, 0),
            ("KEY", 15, 3, 2),
            ("BLUETOOTH", 31, 3, 1),
            ("TIPC", 30, 5, 0),
            ("XDP", 44, 3, 0),
        )
    ),
    *(
        Attempt(
            f"opens a pair of sockets of the family {name}",
            f"try:\n    socket.socketpair({family}, {kind}, {protocol})\n    escaped()\n"
            "except OSError as error:\n    error.errno == errno.EAFNOSUPPORT or escaped(error)",
            unsure=NONE,
        )
        for name, family, kind, protocol in (("PACKET", 17, 3, 768), ("VSOCK", 40, 1, 0), ("TIPC", 30, 5, 0))
    ),
    Attempt("opens a raw socket", "socket.socket(2, 3, 1).close()\nescaped()"),
    Attempt(
        "changes the network by netlink",
        "s = socket.socket(16, 3, 0)\ns.bind((0, 0))\ns.settimeout(3)\n"
        "s.send(struct.pack('=LHHLL', 32, 16, 5, 1, 0) + struct.pack('=BxHiII', 0, 0, 1, 0, 0))\n"
        "code = struct.unpack_from('=i', s.recv(4096), 16)[0]\n"
        "code == 0 and escaped()\nprint('code', code)",
    ),
    Attempt(
        "calls as a 32-bit program",
        "import mmap\nif not X86:\n    print(ABSENT)\nelse:\n"
        "    room = mmap.mmap(-1, 4096, prot=7)\n    room.write(b'\\xb8\\x14\\x00\\x00\\x00\\xcd\\x80\\xc3')\n"
        "    function = ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(room)))\n"
        "    function() > 0 and escaped()",
        unsure=NONE,
    ),
    Attempt(
        "calls by the numbers of x32",
        "libc.syscall(0x4000_0000 | 39) > 0 and escaped()",
        unsure=NONE,
    ),
    *(
        Attempt(
            f"puts words into a terminal by {name}",
            "pid = os.fork()\n"
            "if pid == 0:\n"
            "    os.setsid()\n    ours, theirs = os.openpty()\n    fcntl.ioctl(theirs, 0x540E, 0)\n"
            f"    try:\n        fcntl.ioctl(theirs, {request}, {argument})\n        escaped()\n"
            "    except OSError as error:\n        print(error)\n"
            "        if error.errno not in REFUSALS:\n            escaped(error)\n"
            "    sys.stdout.flush()\n    os._exit(0)\nos.waitpid(pid, 0)",
            unsure=NONE,
        )
        for name, request, argument in (
            ("TIOCSTI", 0x5412, "b'x'"),
            ("TIOCLINUX", 0x541C, "b'\\x06' * 16"),
            ("TIOCSETD", 0x5423, "struct.pack('i', 99)"),
        )
    ),
    Attempt(
        "puts words into a terminal by TIOCSTI, its number in 64 bits",
        "ours, theirs = os.openpty()\n"
        "given = libc.syscall(16 if X86 else 29, theirs, ctypes.c_ulong(0x1_0000_5412), b'x')\n"
        "print(given, ctypes.get_errno())\n(given == 0 or ctypes.get_errno() not in REFUSALS) and escaped()",
        unsure=NONE,
    ),
)

FILES = (
    *(
        Attempt(f"opens {path} for writing", f"writable({path!r})", unsure=NONE)
        for path in (
            "/proc/sys/kernel/core_pattern",
            "/proc/sys/kernel/modprobe",
            "/proc/sys/kernel/hostname",
            "/proc/sys/vm/overcommit_memory",
            "/proc/sys/net/ipv4/ip_forward",
            "/proc/sysrq-trigger",
            "/proc/irq/default_smp_affinity",
        )
    ),
    *(
        Attempt(f"reads {path}", f"os.close(os.open({path!r}, os.O_RDONLY | os.O_NONBLOCK))\nescaped()", unsure=NONE)
        for path in ("/proc/kcore", "/proc/kmsg", "/proc/kpageflags")
    ),
    Attempt(
        "opens a device of the machine's",
        "for name in ('mem', 'kmem', 'port', 'sda', 'vda', 'nvme0n1', 'xvda', 'loop0', 'loop-control',"
        " 'mapper/control', 'kvm', 'vsock', 'userfaultfd', 'btrfs-control'):\n"
        "    try:\n        os.close(os.open('/dev/' + name, os.O_RDONLY | os.O_NONBLOCK))\n        escaped(name)\n"
        "    except OSError as error:\n        print(error)",
        unsure=NONE,
    ),
    Attempt(
        "makes devices of its own",
        "for kind, major, minor in ((0o020000, 1, 1), (0o060000, 8, 0), (0o060000, 254, 0)):\n"
        "    try:\n        os.mknod('node', 0o666 | kind, os.makedev(major, minor))\n"
        "        os.unlink('node')\n        escaped(major, minor)\n"
        "    except OSError as error:\n        print(error)",
    ),
    Attempt(
        "makes a file in /dev",
        "os.close(os.open('/dev/made-up', os.O_WRONLY | os.O_CREAT))\nos.unlink('/dev/made-up')\nescaped()",
    ),
    Attempt(
        "leaves its control group",
        "paths = glob.glob('/sys/fs/cgroup/cgroup.procs') + glob.glob('/sys/fs/cgroup/[pm]*/cgroup.procs')\n"
        "print(ABSENT) if not paths else [writable(p) for p in paths]",
        unsure=NONE,
    ),
    Attempt(
        "has a program run by a control group's end",
        "paths = glob.glob('/sys/fs/cgroup/*/release_agent')\n"
        "print(ABSENT) if not paths else [writable(p) for p in paths]",
        unsure=NONE,
    ),
    Attempt(
        "raises its own limits",
        "import resource\nsoft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)\n"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (hard + 1, hard + 1))\nescaped()",
        unsure=NONE,
    ),
    Attempt("takes precedence over the server", "os.nice(-10)\nescaped()"),
    Attempt(
        "is protected when memory is short",
        "with open('/proc/self/oom_score_adj', 'w') as f:\n    f.write('-900')\nescaped()",
        unsure=NONE,
    ),
)

RIGHTS = (
    Attempt(
        "has a capability",
        "bits = re.search(r'CapEff:\\s+(\\w+)', open('/proc/self/status').read())[1]\nint(bits, 16) and escaped(bits)",
    ),
    Attempt(
        "could gain a capability",
        "bits = re.search(r'CapBnd:\\s+(\\w+)', open('/proc/self/status').read())[1]\nint(bits, 16) and escaped(bits)",
    ),
    Attempt("gains privileges by exec", "'NoNewPrivs:\\t0' in open('/proc/self/status').read() and escaped()"),
    Attempt("runs as root", "os.geteuid() == 0 and escaped()"),
    Attempt("becomes root", "os.setresuid(0, 0, 0)\nescaped()"),
    Attempt("becomes another principal", "os.setresuid(40009, 40009, 40009)\nescaped()"),
    Attempt("joins a group of root's", "os.setgroups([0])\nescaped()"),
    Attempt("runs a planted setuid program", '[ "$("$SHOWN/id" -u)" = 0 ] && echo $ESCAPED', bash=True),
    Attempt("runs su", "[ \"$(su root -c 'id -u' </dev/null)\" = 0 ] && echo $ESCAPED", bash=True, unsure=NONE),
    Attempt("runs mount", "mkdir -p m; mount -t tmpfs none m && echo $ESCAPED && umount m", bash=True, unsure=NONE),
    Attempt(
        "makes a setuid program that is root's",
        'cp /usr/bin/id mine; chown 0:0 mine && chmod 4755 mine && [ "$(./mine -u)" = 0 ] && echo $ESCAPED',
        bash=True,
    ),
    Attempt(
        "loads a library into a setuid program",
        '[ "$(LD_PRELOAD=libc.so.6 LD_LIBRARY_PATH=. "$SHOWN/id" -u)" = 0 ] && echo $ESCAPED',
        bash=True,
    ),
    Attempt(
        "gives a program capabilities",
        "open('capable', 'w').close()\n"
        "os.setxattr('capable', 'security.capability', bytes.fromhex('01000002' + '00002000' + '00' * 12))\nescaped()",
    ),
)
