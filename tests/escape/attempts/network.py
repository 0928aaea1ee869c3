"""Attempts on listeners outside: the server, a database and a bus, the machine's sockets, private addresses."""

from tests.escape.attempt import BWRAP, Attempt

NONE = frozenset({"none"})
NO_PROXY = {"uid": "there is no proxy", "none": "there is no proxy"}


def direct(does: str, host: str, port: str, **how: object) -> Attempt:
    words = f"hears(({host!r}, {port}), socket.AF_INET, b'GET / HTTP/1.0\\r\\n\\r\\n')\nescaped()"
    return Attempt(does, words, **how)  # type: ignore[arg-type]


def through(does: str, target: str, method: str = "GET") -> Attempt:
    return Attempt(does, f'proxied(f"{target}", {method!r})', stopped=BWRAP, untried=NO_PROXY)


DIRECT = (
    direct("connects to the server", "127.0.0.1", "int(E['PORT'])"),
    direct("connects to a database on loopback", "127.0.0.1", "int(E['DATABASE'])"),
    direct("connects to loopback by another address", "127.3.2.1", "int(E['ANYWHERE'])"),
    direct("connects to loopback as 0.0.0.0", "0.0.0.0", "int(E['DATABASE'])"),
    Attempt("connects to the machine's own address", "hears((E['ADDRESS'], int(E['ANYWHERE'])), socket.AF_INET)"),
    direct("connects to the metadata service", "169.254.169.254", "80", unsure=NONE),
    direct("connects to a private network", "10.0.0.1", "80", unsure=NONE),
    Attempt(
        "connects to loopback over IPv6",
        "hears(('::1', int(E['DATABASE6'])), socket.AF_INET6)",
        unsure=NONE,
    ),
    Attempt(
        "sends a datagram to loopback",
        "with socket.socket(2, 2) as s:\n    s.settimeout(2)\n"
        "    s.sendto(b'?', ('127.0.0.1', int(E['BUS'])))\n    print(s.recv(99).decode())",
    ),
    Attempt(
        "asks the machine's resolver",
        "name = re.search(r'nameserver\\s+(\\S+)', open('/etc/resolv.conf').read())[1]\n"
        "socket.create_connection((name, 53), 3).close()\n"
        "escaped()",
        unsure=NONE,
    ),
)

SOCKETS = (
    Attempt("connects to a socket that is root's", "hears(E['DOCKER'])"),
    Attempt(
        "connects to a socket in the state folder",
        "with socket.socket(socket.AF_UNIX) as s:\n    s.connect(E['STATE'] + '/agent.sock')\nescaped()",
    ),
)

OPEN_SOCKETS = (
    Attempt("connects to a socket that every user may use", "hears(E['SOCKET'])", stopped=BWRAP),
    Attempt("connects to an abstract socket", "hears('\\0' + E['ABSTRACT'])", stopped=BWRAP),
)

PROXY = (
    through("asks the proxy for the server", "http://127.0.0.1:{E['PORT']}/health"),
    through("asks the proxy for a database on loopback", "http://127.0.0.1:{E['DATABASE']}/"),
    through("asks the proxy for localhost", "http://localhost:{E['DATABASE']}/"),
    through("asks the proxy for loopback in numbers", "http://2130706433:{E['DATABASE']}/"),
    through("asks the proxy for loopback in hexadecimal", "http://0x7f.1:{E['DATABASE']}/"),
    through("asks the proxy for loopback in octal", "http://0177.0.0.1:{E['DATABASE']}/"),
    through("asks the proxy for 0.0.0.0", "http://0.0.0.0:{E['DATABASE']}/"),
    through("asks the proxy for loopback over IPv6", "http://[::1]:{E['DATABASE6']}/"),
    through("asks the proxy for loopback mapped into IPv6", "http://[::ffff:127.0.0.1]:{E['DATABASE']}/"),
    through("asks the proxy for the machine's name", "http://{E['HOST']}:{E['DATABASE']}/"),
    through("asks the proxy for a name and a password before it", "http://example.com@127.0.0.1:{E['DATABASE']}/"),
    through("has the proxy make a tunnel to a database", "127.0.0.1:{E['DATABASE']}", "CONNECT"),
    through("has the proxy make a tunnel to localhost", "localhost:{E['DATABASE']}", "CONNECT"),
    through("has the proxy make a tunnel to the metadata service", "169.254.169.254:80", "CONNECT"),
    through("has the proxy make a tunnel to a private network", "10.0.0.1:22", "CONNECT"),
    Attempt(
        "asks the proxy for the metadata service",
        "said = b''\nwith socket.create_connection(('127.0.0.1', 3128), 5) as s:\n"
        "    s.sendall(b'GET http://169.254.169.254/latest/meta-data/ HTTP/1.1\\r\\nHost: metadata\\r\\n\\r\\n')\n"
        "    said = s.recv(4000)\nprint(said.decode())\nb' 403 ' in said.split(b'\\r\\n')[0] or escaped(said)",
        stopped=BWRAP,
        untried=NO_PROXY,
    ),
    Attempt(
        "hides a second request from the proxy",
        "with socket.create_connection(('127.0.0.1', 3128), 5) as s:\n"
        "    where = 'http://127.0.0.1:' + E['DATABASE'] + '/ HTTP/1.1'\n"
        '    s.sendall(f"POST {where}\\r\\nHost: example.com\\r\\nContent-Length: 5\\r\\n"\n'
        '        f"Transfer-Encoding: chunked\\r\\n\\r\\n0\\r\\n\\r\\nGET {where}\\r\\nHost: x\\r\\n\\r\\n".encode())\n'
        "    print(s.recv(4000).decode(errors='replace'))",
        stopped=BWRAP,
        untried=NO_PROXY,
    ),
)
