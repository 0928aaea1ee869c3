"""Build the seccomp filter: the system calls that the kernel refuses to sandboxed commands.

A refusal is an error, so programs fall back as on an older system. Allowed is what shells, compilers, interpreters and
databases use. Refused is what escapes are made of, and what reads other processes. A call of another architecture
(32-bit on x86-64) kills the process: its numbers mean something else.
"""

import errno
import functools
from collections.abc import Sequence
from typing import Any

# Each group with its reason. Names unknown to this architecture are skipped: it has no such call.
REFUSED = (
    # other processes' memory, and monitoring commands
    "ptrace process_vm_readv process_vm_writev process_madvise kcmp pidfd_getfd",
    # mounts and namespaces: the server alone sets up the view of files
    "mount umount umount2 pivot_root chroot setns mount_setattr move_mount open_tree open_tree_attr fsopen fsconfig "
    "fsmount fspick statmount listmount",
    # kernel keyrings are not separated by namespaces
    "add_key keyctl request_key",
    # much of the kernel's attack surface, and rarely used
    "bpf userfaultfd perf_event_open io_uring_setup io_uring_enter io_uring_register fanotify_init lookup_dcookie",
    "init_module finit_module delete_module create_module query_module get_kernel_syms kexec_load kexec_file_load",
    "modify_ldt vm86 vm86old uselib nfsservctl _sysctl sysfs ustat vmsplice memfd_secret",
    # the machine as a whole
    "reboot swapon swapoff acct quotactl quotactl_fd iopl ioperm settimeofday stime clock_settime clock_settime64 "
    "adjtimex clock_adjtime clock_adjtime64 sethostname setdomainname syslog vhangup",
    # file handles bypass every path (and were a container escape); NUMA placement of others' pages
    "open_by_handle_at name_to_handle_at move_pages migrate_pages set_mempolicy mbind",
)
NUMBERS = {  # of calls that the kernel may have but libseccomp not know; since 424 they are the same everywhere
    "pidfd_getfd": 438,
    "process_madvise": 440,
    "mount_setattr": 442,
    "quotactl_fd": 443,
    "memfd_secret": 447,
    "process_mrelease": 448,
    "fchmodat2": 452,
    "statmount": 457,
    "listmount": 458,
    "setxattrat": 463,
    "removexattrat": 466,
    "open_tree_attr": 467,
    "file_setattr": 469,
}
UNKNOWN = -1  # libseccomp's answer for an unknown name (__NR_SCMP_ERROR)
MISSING = "clone3"  # answered with "no such call": libc then uses clone, whose flags the filter can see
NAMESPACES = (  # linux/sched.h: CLONE_NEW… user, mount, pid, net, ipc, uts, cgroup, time
    0x1000_0000, 0x0002_0000, 0x2000_0000, 0x4000_0000, 0x0800_0000, 0x0400_0000, 0x0200_0000, 0x0000_0080,
)  # fmt: skip
CLONE_NAMESPACES = NAMESPACES[:-1]  # of clone, where 0x80 is part of the signal
FAMILIES = (1, 2, 10, 16)  # allowed sockets: AF_UNIX, AF_INET, AF_INET6, AF_NETLINK (which lists interfaces)
OFFLINE = (1, 16)  # the same if there is to be no network, and no namespace ensures that
TIOCSTI, TIOCLINUX, TIOCSETD = 0x5412, 0x541C, 0x5423  # write to or reconfigure another's terminal
READER = (  # opens no file, starts and signals nothing, and sees no other process
    "read readv pread64 recvfrom recvmsg recv write writev sendto sendmsg send lseek _llseek close",
    "fstat fstat64 newfstatat statx",
    "brk munmap mremap madvise",
    "futex futex_time64 restart_syscall rseq set_robust_list sched_yield sched_getaffinity",
    "rt_sigaction rt_sigprocmask rt_sigreturn sigreturn sigaltstack",
    "clock_gettime clock_gettime64 clock_getres gettimeofday time nanosleep clock_nanosleep clock_nanosleep_time64",
    "getpid gettid getuid geteuid getgid getegid getrandom",
    "getrusage getrlimit ugetrlimit setrlimit",
    "exit exit_group",
)
PROT_EXEC = 4  # asm-generic/mman-common.h
READER_IF = {  # call → the index of an argument, and its forbidden bits
    "mmap": (2, PROT_EXEC),  # later mappings are not executable
    "mmap2": (2, PROT_EXEC),
    "mprotect": (2, PROT_EXEC),
    "prlimit64": (0, 0xFFFF_FFFF),  # of no other process
}
PUNCH_HOLE = 2  # the mode of fallocate that frees space (linux/falloc.h)
RESERVED = (  # fallocate as an ioctl, FS_IOC_RESVSP, …RESVSP64 and …ZERO_RANGE (linux/falloc.h)
    0x4030_5828, 0x4030_582A, 0x4030_5839,
    0x4030_580A, 0x4030_5824,  # XFS_IOC_ALLOCSP and …ALLOCSP64, until Linux 5.17
    0x401C_5820,  # FS_IOC_FSSETXATTR: its extent size lets one byte take gigabytes of XFS, its project escapes a quota
)  # fmt: skip
SUBVOLUMES = (  # BTRFS_IOC_SNAP_CREATE, SUBVOL_CREATE and their second versions: disk usage is not measured across them
    0x5000_9401, 0x5000_940E, 0x5000_9417, 0x5000_9418,
)  # fmt: skip
LARGEST_SEGMENT = 2**16  # bytes of System V shared memory, which no process's end frees: at most 4,096 segments
HIGHEST = 64  # address families end below 50 (linux/socket.h)
LOW = 0xFFFF_FFFF  # the kernel reads the argument as 32 bits and ignores the rest


class FilterUnavailableError(Exception):
    """The library for the filter is missing; the text says what to install."""


class FilterRules:
    """The rules of a filter that allows what no rule names. Raises FilterUnavailableError."""

    def __init__(self) -> None:
        self._library = _library()
        self._rules = self._library.SyscallFilter(self._library.ALLOW)

    def refuse(self, names: str, *arguments: object, error: int = errno.EPERM) -> None:
        """Refuse each of the named calls, if all `arguments` match. Calls that this architecture lacks are skipped."""
        for name in names.split():
            is_known = self._library.resolve_syscall(self._library.Arch.NATIVE, name) != UNKNOWN
            try:
                number = name if is_known else NUMBERS.get(name, name)
                self._rules.add_rule(self._library.ERRNO(error), number, *arguments)
            except OSError as failure:  # not a call of this architecture
                if failure.errno not in (errno.EINVAL, errno.EDOM, errno.EFAULT, errno.ENOENT, errno.EEXIST):
                    raise
            except ValueError:
                pass

    def match_bits(self, number: int, mask: int, value: int) -> object:
        return self._library.Arg(number, self._library.MASKED_EQ, mask, value)

    def match(self, number: int, comparison: str, value: int) -> object:
        """`comparison`: EQ, NE, GT, GE, LT or LE. The value is compared in 64 bits."""
        return self._library.Arg(number, getattr(self._library, comparison), value)

    def resolve(self, name: str) -> int:
        """Return the call's number."""
        number: int = self._library.resolve_syscall(self._library.Arch.NATIVE, name)
        return number

    def refuse_escapes(self) -> None:
        """Refuse what no command needs, and escapes are made of."""
        for row in REFUSED:
            self.refuse(row)
        self.refuse(MISSING, error=errno.ENOSYS)
        for flag in NAMESPACES:
            self.refuse("unshare", self.match_bits(0, flag, flag))
        for flag in CLONE_NAMESPACES:
            self.refuse("clone", self.match_bits(0, flag, flag))

    def allow_families(self, families: Sequence[int]) -> None:
        """Refuse sockets of all other families."""
        for number in sorted(set(range(HIGHEST)).difference(families)):
            self.refuse("socket socketpair", self.match_bits(0, LOW, number), error=errno.EAFNOSUPPORT)
        self.refuse("socket socketpair", self.match(0, "GE", HIGHEST), error=errno.EAFNOSUPPORT)

    def export(self) -> bytes:
        return _export(self._rules)


@functools.cache
def program(*, offline: bool = False) -> bytes:
    """Return the filter. `offline` refuses sockets that reach other machines. Raises FilterUnavailableError."""
    rules = FilterRules()
    rules.refuse_escapes()
    for request in (TIOCSTI, TIOCLINUX, TIOCSETD, *SUBVOLUMES):
        rules.refuse("ioctl", rules.match_bits(1, LOW, request))
    # No resource limit bounds reserved space. Programs fall back to writing.
    rules.refuse("fallocate", rules.match_bits(1, PUNCH_HOLE, 0), error=errno.EOPNOTSUPP)
    rules.refuse("file_setattr", error=errno.EOPNOTSUPP)  # FS_IOC_FSSETXATTR by path
    for request in RESERVED:
        rules.refuse("ioctl", rules.match_bits(1, LOW, request), error=errno.EOPNOTSUPP)
    rules.refuse("shmget", rules.match(1, "GT", LARGEST_SEGMENT), error=errno.EINVAL)
    rules.allow_families(OFFLINE if offline else FAMILIES)
    return rules.export()


@functools.cache
def reader_program() -> bytes:
    """Return the filter of a process that only reads: its allowed calls. Raises FilterUnavailableError."""
    pyseccomp = _library()
    rules = pyseccomp.SyscallFilter(pyseccomp.ERRNO(errno.EPERM))
    allowed: dict[str, Any] = {name: () for row in READER for name in row.split()}
    for name, (number, bits) in READER_IF.items():
        allowed[name] = (pyseccomp.Arg(number, pyseccomp.MASKED_EQ, bits, 0),)
    for name, arguments in allowed.items():
        if pyseccomp.resolve_syscall(pyseccomp.Arch.NATIVE, name) >= 0:  # else this architecture has no such call
            rules.add_rule(pyseccomp.ALLOW, name, *arguments)
    return _export(rules)


def _library() -> Any:
    try:
        import pyseccomp  # type: ignore[import-untyped]  # start-up: only a server that confines something needs it
    except (ImportError, OSError, RuntimeError) as error:
        raise FilterUnavailableError("libseccomp is missing: apt-get install libseccomp2") from error
    return pyseccomp


def _export(rules: object) -> bytes:
    import tempfile  # start-up: as pyseccomp

    with tempfile.TemporaryFile() as file:
        rules.export_bpf(file)  # type: ignore[attr-defined]  # pyseccomp has no types
        file.seek(0)
        return file.read()
