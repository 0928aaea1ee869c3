"""Random parts of messages of HTTP/1.1, right and wrong."""

import random

FIELDS = ["Accept: */*", "X: ", "X:a", "X: \t a b \t", "X: \xe9", "Connection: keep-alive", "X-Own: a,b", "Cookie: a=b"]
MUTATIONS = [b"\r", b"\n", b"\0", b" ", b"\t", b":", b"\r\n", b";", b",", b"0", b"a", b"\xe9", b"\x7f", b"\r\n ", b'"']
LENGTHS = ["Content-Length: {0}", "content-length:  {0} ", "Content-Length: 0{0}", "Content-Length: {0}, {0}"]
LENGTHS += ["Content-Length: {0}\r\nContent-Length: {0}", "Content-Length: +{0}"]
CODINGS = ["Transfer-Encoding: chunked"] * 6 + ["transfer-encoding:Chunked ", "Transfer-Encoding: gzip, chunked"]
CODINGS += ["Transfer-Encoding: chunked, chunked", "Content-Length: 3\r\nTransfer-Encoding: chunked"]


def random_chunks(rng: random.Random, content: bytes) -> bytes:
    chunks = b""
    while content:
        size = rng.randrange(1, len(content) + 1)
        extension = rng.choice([b"", b"", b"", b";a", b";a=b", b';a="b c"', b";", b"; a = b"])
        number = rng.choice([b"%x", b"%X", b"0%x"]) % size
        chunks += b"%b%b\r\n%b\r\n" % (number, extension, content[:size])
        content = content[size:]
    return chunks + b"0\r\n" + rng.choice([b"", b"", b"X-Trailer: a\r\n", b"Host: evil\r\nA:\r\n"]) + b"\r\n"


def mutate(rng: random.Random, data: bytes) -> bytes:
    """Return `data` with one or two bytes inserted, replaced, removed or repeated."""
    for _ in range(rng.choice([1, 1, 2])):
        place = rng.randrange(len(data))
        match rng.randrange(4):
            case 0:
                data = data[:place] + rng.choice(MUTATIONS) + data[place:]
            case 1:
                data = data[:place] + rng.choice(MUTATIONS) + data[place + 1 :]
            case 2:
                data = data[:place] + data[place + 1 :]
            case _:
                size = rng.randrange(1, 20)
                data = data[: place + size] + data[place:]
    return data
