"""Linux control groups, which limit groups of processes on cgroup v1, v2 or a mix. Standard library only.

Enter at `find`: it returns the usable groups below this process's group, or why there are none.
`Cgroups` makes a `Group` for each principal. Every wait blocks and belongs on a thread.

    OWN/                        the group of this process; on v2, what was delegated to it
      toolgate-server/          v2: where this process moves, if it may: a group with groups has no processes
      toolgate-PID-TOKEN/       a server group; an flock on the folder is held while its server lives
        DIGEST/                 a group

    written to a group          v1                                          v2
    memory                      memory.limit_in_bytes                       memory.max
    swap                        memory.memsw.limit_in_bytes, or             memory.swap.max
                                memory.swappiness where that is missing
    processes and threads       pids.max                                    pids.max
    CPU weight                  cpu.shares                                  cpu.weight
    to give way                 cpu.shares                                  cpu.weight
    to kill                     pids.max                                    pids.max, cgroup.kill
    to enter                    cgroup.procs                                cgroup.procs
    to have groups              -                                           cgroup.subtree_control of OWN and it

Out of memory, the kernel kills the largest process of the group and no other (memory.oom.group stays 0): a group is all
that a principal runs, and one greedy command must not take the others along. `Group.hits` tells of it.
"""

from toolgate.tools.workspace.sandbox.cgroups.cgroups import Cgroups, find
from toolgate.tools.workspace.sandbox.cgroups.group import Group, Hits

__all__ = ["Cgroups", "Group", "Hits", "find"]
