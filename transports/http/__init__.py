"""Turn a request over HTTP into a call, and what the call sends into its answer. `server` listens.

Read on in `requests.front`.

    bytes ─→ wire.connection    finds the ends of heads and bodies; bounds them in size and time
               │ HttpRequest
             requests.front     checks Host, Origin and proxy headers, gives an id, finds the handler of the path
               │
             requests.bearer    who calls: a Principal from the token, or 401 before the body is read
               │
             transport.Endpoint one method of the path; refuses a principal with too many requests
               │
             streamable_http    reads the body and decodes it (`requests.body`): from here on it is a message
               │                `bearer.ScopeCheck`: 403 if the token lacks a scope that the message needs
               ├─ a revision without sessions: stateless.StatelessPosts makes a Session for this request
               └─ one with them: sessions.Sessions finds the HttpSession by its id and principal
               │
             RunningMessages    starts a task, which has the dispatcher handle the message with a channel: the table
               │                of methods, `methods.tools.call_tool` (rate limit, rules), and the tool
    answer ←─ requests.post.PostReply, the channel: the answer alone within a second is one JSON body;
             anything before it, or silence, makes an EventStream, which `stream_response` sends

Who owns what. The connection owns the socket and its deadlines. The request is its handler's until it has returned an
answer. The session owns its streams and tasks, so that work goes on when a reader leaves; without a session the request
owns both, and a reader who leaves ends the work. Budgets in `transport` belong to the principal.

What is cached. A head that came before is found by its bytes, with its parsed form and its route, since a client
repeats the same one; large heads are not kept. A verified token is found by its digest until it expires or its access
is ended.

How a stream resumes. `sessions.event_stream` numbers events and keeps the newest. A reader comes back by GET with
Last-Event-ID to `StreamableHttpTransport._get`. `HttpSession.find_event` (`sessions.session`) finds its stream, and the
stream goes on behind that event. `sessions.event_ids` names streams so that this works after a restart, too. With
replicas, `features/replicas/sessions/resumed_streams.py` finds it wherever it began.

`requests`, `sessions` and `wire` do not import each other upwards: `requests` imports `sessions`, and both `wire`. None
imports a transport or a page.
"""
