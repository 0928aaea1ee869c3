"""Changes by /proc, devices, mounts, namespaces, sockets, signals and other processes."""

from tests.escape.writes.write import Write

HARMLESS = {  # without a plan they come off
    "writes by another process's root": "open(f'/proc/{os.getpid()}/root{TREE}/a', 'w').close()",
    "writes by its parent's folder": "open(f'/proc/{os.getppid()}/root{TREE}/a', 'w').close()",
    "takes a descriptor over from its parent": "open(f'/proc/{os.getppid()}/cwd/tree/a', 'w').close()",
    "writes its own memory": "fd = os.open('/proc/self/mem', os.O_RDWR)\nprint('CHANGED')",
    "writes its own name": "open('/proc/self/comm', 'w').write('x')\nprint('CHANGED')",
    "protects itself when memory is short": "open('/proc/self/oom_score_adj', 'w').write('1')\nprint('CHANGED')",
    "writes in /dev/shm": "open('/dev/shm/toolgate-new', 'w').close()\nos.unlink('/dev/shm/toolgate-new')\n"
    "print('CHANGED', os.stat('/dev/shm').st_dev)",
    "writes in /tmp": "open('/tmp/toolgate-new', 'w').close()\nos.unlink('/tmp/toolgate-new')\n"
    "print('CHANGED', os.stat('/tmp').st_dev)",
    "connects to a server that writes": "s = socket.socket(socket.AF_UNIX)\ns.settimeout(1)\n"
    "s.connect(HOME + '/sock')\ns.send(b'x')\ns.recv(1)",
    "sends to a server that writes": "s = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)\n"
    "s.sendto(b'x', HOME + '/dsock')\ntime.sleep(0.2)",
    "sends from a pair to a server that writes": "s, _ = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)\n"
    "s.sendto(b'x', HOME + '/dsock')\ntime.sleep(0.2)",
    "sends from a raw pair": "s, _ = socket.socketpair(socket.AF_UNIX, socket.SOCK_RAW)\n"
    "s.sendto(b'x', HOME + '/dsock')\ntime.sleep(0.2)",
    "connects a pair anew": "s, _ = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)\n"
    "s.connect(HOME + '/dsock')\ns.send(b'x')\ntime.sleep(0.2)",
    "writes into a fifo that is read": "os.write(os.open(HOME + '/pipe', os.O_WRONLY | os.O_NONBLOCK), b'x\\n')\n"
    "time.sleep(0.2)",
    "connects to an abstract socket": "s = socket.socket(socket.AF_UNIX)\ns.settimeout(1)\n"
    "s.connect('\\0' + os.environ['NAME'])\ns.send(b'x')\ns.recv(1)",
    "signals a process": "os.kill(CANARY, signal.SIGCONT)\nprint('CHANGED')",
    "signals a process by a descriptor": "signal.pidfd_send_signal(os.pidfd_open(CANARY), signal.SIGCONT)\n"
    "print('CHANGED')",
    "signals a thread": "call(131 if ARM else 234, CANARY, CANARY, int(signal.SIGCONT))\nprint('CHANGED')",
    "queues a signal": "info = struct.pack('iii', int(signal.SIGCONT), 0, -1) + bytes(116)\n"
    "call(138 if ARM else 129, CANARY, int(signal.SIGCONT), info)\nprint('CHANGED')",
    "lowers a process's limits": "resource.prlimit(CANARY, resource.RLIMIT_NOFILE, (99, 4096))\nprint('CHANGED')",
    "lowers a process's priority": "os.setpriority(os.PRIO_PROCESS, CANARY, 5)\nprint('CHANGED')",
    "pins a process": "os.sched_setaffinity(CANARY, {0})\nprint('CHANGED')",
    "schedules a process": "os.sched_setscheduler(CANARY, os.SCHED_BATCH, os.sched_param(0))\nprint('CHANGED')",
    "lowers a process's I/O priority": "call(30 if ARM else 251, 1, CANARY, 2 << 13 | 7)\nprint('CHANGED')",
    "traces a process": "call(117 if ARM else 101, 0x4206, CANARY, 0, 0)\nprint('CHANGED')",
    "writes a process's memory": "line = next(l for l in open(f'/proc/{CANARY}/maps') if 'rw-p' in l)\n"
    "there = int(line.split('-')[0], 16)\nroom = ctypes.create_string_buffer(b'x')\n"
    "own = struct.pack('PL', ctypes.addressof(room), 1)\n"
    "call(270 if ARM else 310, CANARY, own, 1, struct.pack('PL', there, 1), 1, ctypes.c_ulong(0))\n"
    "call(271 if ARM else 311, CANARY, own, 1, struct.pack('PL', there, 1), 1, ctypes.c_ulong(0))\nprint('CHANGED')",
    "opens a process's memory": "os.open(f'/proc/{CANARY}/mem', os.O_RDWR)\nprint('CHANGED')",
    "takes a process's descriptor": "call(438, os.pidfd_open(CANARY), 0, 0)\nprint('CHANGED')",
    "has signals of a file sent to a process": "r, w = os.pipe()\nfcntl.fcntl(r, fcntl.F_SETOWN, CANARY)\n"
    "fcntl.fcntl(r, 8, CANARY)\nprint('CHANGED')",
    "makes shared memory": "id = call(194 if ARM else 29, 0, 4096, 0o1600)\n"
    "call(195 if ARM else 31, id, 0, None)\nprint('CHANGED')",
    "makes semaphores": "id = call(190 if ARM else 64, 0, 1, 0o1600)\ncall(191 if ARM else 66, id, 0, 0)\n"
    "print('CHANGED')",
    "makes a message queue": "id = call(186 if ARM else 68, 0, 0o1600)\ncall(187 if ARM else 71, id, 0, None)\n"
    "print('CHANGED')",
    "makes a POSIX queue": "call(180 if ARM else 240, b'toolgate-new', os.O_RDWR | os.O_CREAT, 0o600, None)\n"
    "call(181 if ARM else 241, b'toolgate-new')\nprint('CHANGED')",
    "takes from a POSIX queue": "room = ctypes.create_string_buffer(8192)\n"  # of one that is open: EBADF says it may
    "try:\n    call(183 if ARM else 243, -1, room, 8192, None, None)\nexcept OSError as error:\n"
    "    error.errno == errno.EBADF and print('CHANGED')",
    "asks a POSIX queue for a signal": "try:\n    call(184 if ARM else 244, -1, None)\nexcept OSError as error:\n"
    "    error.errno == errno.EBADF and print('CHANGED')",
    "allows itself core dumps": "resource.setrlimit(resource.RLIMIT_CORE, (0, 0))\nprint('CHANGED')",
    "mounts a tmpfs in a namespace": "subprocess.run(['unshare', '-m', 'sh', '-c', 'mount -t tmpfs none empty && "
    "echo CHANGED'])",
    "binds in a namespace": "subprocess.run(['unshare', '-m', 'sh', '-c', 'mount --bind dir empty && echo CHANGED'])",
    "remounts in a namespace": "subprocess.run(['unshare', '-m', 'sh', '-c', 'mount --bind dir dir && mount -o "
    "remount,bind,ro dir && echo CHANGED'])",
    "makes a user namespace": "subprocess.run(['unshare', '-r', 'sh', '-c', 'echo CHANGED'])",
    "mounts in a user namespace": "subprocess.run(['unshare', '-rm', 'sh', '-c', 'mount -t tmpfs none empty && echo "
    "CHANGED'])",
    "overlays in a user namespace": "subprocess.run(['unshare', '-rm', 'sh', '-c', 'mount -t tmpfs t empty && mkdir "
    "empty/u empty/w && mount -t overlay o -o lowerdir=dir,upperdir=empty/u,workdir=empty/w dir && echo CHANGED'])",
    "makes a user namespace by clone3": "room = struct.pack('QQQQQQQQ', 0x10000000, 0, 0, 0, 17, 0, 0, 0)\n"
    "pid = call(435, room, 64)\nif pid == 0:\n    os._exit(0)\nos.waitpid(pid, 0)\nprint('CHANGED')",
    "fsopen": "call(430, b'tmpfs', 0)\nprint('CHANGED')",
    "open_tree by a clone": "call(428, -100, b'dir', 1)\nprint('CHANGED')",
    "chroot": "os.chroot('dir')\nprint('CHANGED')",
    "io_uring": "call(425, 4, ctypes.create_string_buffer(120))\nprint('CHANGED')",
    "opens a file by its handle": "room = ctypes.create_string_buffer(struct.pack('Ii', 128, 0), 200)\n"
    "mount = ctypes.c_int()\ncall(264 if ARM else 303, -100, b'a', room, ctypes.byref(mount), 0)\nprint('CHANGED')",
    "opens a device": "os.close(os.open('/dev/ptmx', os.O_RDWR))\nprint('CHANGED')",
    "seals and writes memory, to its own file": "fd = os.memfd_create('x')\nos.write(fd, b'x')\n"
    "os.write(os.open(f'/proc/self/fd/{fd}', os.O_WRONLY), b'y')\nos.sendfile(os.open('a', os.O_WRONLY), fd, 0, 1)",
}
HARMFUL = {  # never tried without a plan
    **{
        f"opens {path}": f"os.close(os.open({path!r}, os.O_WRONLY))\nprint('CHANGED')"
        for path in (
            *("/proc/sys/kernel/core_pattern", "/proc/sys/kernel/hostname", "/proc/sys/vm/overcommit_memory"),
            *("/proc/sysrq-trigger", "/proc/self/uid_map", "/sys/power/state", "/dev/mem", "/dev/kmsg", "/dev/sda"),
            *("/dev/vda", "/dev/loop-control", "/dev/fuse", "/etc/passwd", "/etc/ld.so.cache", "/usr/bin/env"),
        )
    },
    "makes a control group": "os.mkdir('/sys/fs/cgroup/toolgate-new')\nprint('CHANGED')",
    "makes a file in /etc": "open('/etc/toolgate-new', 'w').close()\nos.unlink('/etc/toolgate-new')\nprint('CHANGED')",
    "makes a file in /var/tmp": "open('/var/tmp/toolgate-new', 'w').close()\nos.unlink('/var/tmp/toolgate-new')\n"
    "print('CHANGED', os.stat('/var/tmp').st_dev)",
    "signals the server": "os.kill(SERVER, 0)\nprint('CHANGED')",
    "signals its supervisor": "pid, up = os.getpid(), 0\n"
    "for _ in range(3):\n    pid = int(open(f'/proc/{pid}/stat').read().rpartition(')')[2].split()[1])\n"
    "os.kill(pid, 0)\nprint('CHANGED')",
    "opens the server's memory": "os.close(os.open(f'/proc/{SERVER}/mem', os.O_RDWR))\nprint('CHANGED')",
    "opens the server's descriptors": "for number in range(64):\n    try:\n"
    "        os.open(f'/proc/{SERVER}/fd/{number}', os.O_WRONLY | os.O_NONBLOCK)\n        print('CHANGED', number)\n"
    "    except OSError:\n        pass",
    "sets the priority of its user's processes": "os.setpriority(os.PRIO_USER, 0, os.nice(0))\nprint('CHANGED')",
    "sets the I/O priority of its user's processes": "call(30 if ARM else 251, 3, 0, 0)\nprint('CHANGED')",
    "names the machine": "socket.sethostname(socket.gethostname())\nprint('CHANGED')",
    "sets the time": "time.clock_settime(time.CLOCK_REALTIME, time.time())\nprint('CHANGED')",
    "makes a link of the network": "s = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0)\n"
    "s.send(struct.pack('=LHHLL', 32, 16, 0x605, 1, 0) + struct.pack('=BxHiII', 0, 0, 0, 0, 0))\n"
    "struct.unpack_from('=i', s.recv(4096), 16)[0] == 0 and print('CHANGED')",
    "pivot_root": "call(41 if ARM else 155, b'dir', b'dir/deep')\nprint('CHANGED')",
    "mounts over the tree": "libc.mount(b'none', b'empty', b'tmpfs', 0, None) == 0 and print('CHANGED')",
    "turns accounting on": "libc.acct(b'a') == 0 and print('CHANGED')",
    "swaps on a file": "libc.swapon(b'big', 0) == 0 and print('CHANGED')",
    "loads a BPF program": "call(280 if ARM else 321, 5, bytes(128), 128)\nprint('CHANGED')",
    "adds a key": "call(217 if ARM else 248, b'user', b'toolgate', b'x', 1, -3)\nprint('CHANGED')",
    "calls as a 32-bit program": "if not ARM:\n    room = mmap.mmap(-1, 4096, prot=7)\n"
    "    room.write(b'\\xb8\\x14\\x00\\x00\\x00\\xcd\\x80\\xc3')\n"
    "    function = ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(room)))\n"
    "    function() > 0 and print('CHANGED')",
    "calls by the numbers of x32": "ARM or libc.syscall(0x4000_0000 | 39) > 0 and print('CHANGED')",
    "makes a call that is newer than the filter": "libc.syscall(600)\nctypes.get_errno() != 38 and print('CHANGED')",
}
PRIVATE = (
    "writes in /dev/shm",
    "writes in /tmp",
    "makes a file in /var/tmp",
)  # at bwrap that vanishes with the command
UNSURE = frozenset((
    "makes a user namespace", "mounts in a user namespace",
    "overlays in a user namespace", "connects to an abstract socket", "allows itself core dumps", "io_uring",
    "takes a process's descriptor", "opens a file by its handle",
))  # fmt: skip

SYSTEM = (
    *(Write(name, script, python=True, free=name not in UNSURE) for name, script in HARMLESS.items()),
    *(Write(name, script, python=True, free=False) for name, script in HARMFUL.items()),
)
