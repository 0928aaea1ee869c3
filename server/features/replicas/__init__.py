"""Have several servers answer as one (`--redis`): any of them takes any request, and none is missed when it dies.

    a request ─→ any replica             RedisSessionStore reads the session's record in Redis with each request, and
                   │                     builds an HttpSession at the first; RedisBackend merges what changes
                 a stream ─→ Redis       the replica that began a stream produces it, and the stream's id names that
                   │                     replica; WriteBehind copies each event to Redis
    a reader returns to another replica  ResumedStreams asks the producer by mail; if it is dead, Redis has the events

No replica owns a session of Streamable HTTP: Redis has its record, until 30 minutes after its last use. A replica owns
the calls, streams and questions that began there. It owns the sessions of HTTP+SSE, whose ids name it.

    RedisMail    to one replica, with a reply   POSTs of HTTP+SSE (ForwardedPosts), answers of clients and to tasks
                                                (RemoteTasks), messages for the replica with the session's GET stream,
                                                which the record names (UnrequestedMessages)
    RedisTopics  to all replicas                changed lists and resources (SharedNotifications), ends of sessions
    RedisKeys    values that end, and counts    RedisSessionRecords, SharedNotices, RedisQuestionStore, RedisCallCounts

Each replica holds a lease in Redis (RedisReplica), and a lock where PostgreSQL has the state. ReplicaProcesses looks at
both each second. The living replicas take over the tasks and callbacks of a dead one.

While Redis is away, a command raises BusUnreachableError within its time limit. A request of a session then gets 503.
Each replica counts limits alone (Fallback). No approval is asked for or accepted, and no replica is found dead. Events
wait in WriteBehind, within bounds. RedisLink connects again by itself.

Enter at `feature.ReplicasFeature`: it takes slots of the host. Only `server/config/feature_rows.py` names this room.
"""
