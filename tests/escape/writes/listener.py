"""Write down in a file what comes by sockets and a fifo: another process that a plan could have write for it.

A program: `listener.py NAME`, NAME being an abstract socket's. Standard library only."""

import os
import socket
import sys
import threading


def note(kind):
    with open("heard", "a") as file:
        file.write(f"{kind}\n")


def accept(listener, kind):
    while True:
        taken, _ = listener.accept()
        if taken.recv(1):
            note(kind)
            taken.send(b"y")
        taken.close()


def receive(listener):
    while listener.recv(1):
        note("datagram")


def read():
    pipe = os.open("pipe", os.O_RDWR)  # so that it has no end
    while os.read(pipe, 100):
        note("fifo")


os.mkfifo("pipe")
open("heard", "w").close()
stream, abstract = socket.socket(socket.AF_UNIX), socket.socket(socket.AF_UNIX)
datagrams = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
for each, name in ((stream, "sock"), (datagrams, "dsock"), (abstract, f"\0{sys.argv[1]}")):
    each.bind(name)
stream.listen()
abstract.listen()
threading.Thread(target=accept, args=(stream, "stream")).start()
threading.Thread(target=accept, args=(abstract, "abstract")).start()
threading.Thread(target=receive, args=(datagrams,)).start()
threading.Thread(target=read).start()
with open("listening", "w") as ready:
    ready.write(str(os.getpid()))
