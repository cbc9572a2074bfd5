"""Somebody outside: after a while kills a process, and notes the moment. `killer.py PID SIGNAL SECONDS FILE`."""

import json
import os
import signal
import sys
import time

pid, name, seconds, file = sys.argv[1:]
time.sleep(float(seconds))
moment = time.time()
os.kill(int(pid), getattr(signal, name))
with open(file, "a", encoding="utf-8") as moments:
    moments.write(json.dumps({"moment": "killed", "time": moment}) + "\n")
