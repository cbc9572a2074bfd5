"""Notes each moment at which a port accepts a connection after a time when it didn't. `prober.py PORT FILE`

It tries every millisecond; then it holds the connection until the server closes it, so that it disturbs nobody.
Ends at the end of its standard input.
"""

import json
import select
import socket
import sys
import time

port, file = int(sys.argv[1]), sys.argv[2]
while not select.select([sys.stdin], [], [], 0.001)[0]:
    try:
        connection = socket.create_connection(("127.0.0.1", port))
    except OSError:
        continue
    moment = time.time()
    with open(file, "a", encoding="utf-8") as moments:
        moments.write(json.dumps({"moment": "accepts", "time": moment}) + "\n")
    with connection:
        select.select([sys.stdin, connection], [], [])
