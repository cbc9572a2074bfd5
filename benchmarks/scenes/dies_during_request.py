"""Each test's server is killed from outside while its request is under way (the rehearsal's fault keeps it so)."""

import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.stopwatch import MOMENTS
from fixtures.api_server.founding import FOUNDING_REQUEST

pytestmark = pytest.mark.multigpu
KILLER = Path(__file__).parents[1] / "killer.py"
KILLERS = []  # kept, so that nobody waits for them


def test_dies_during_request(client, api_server, repeat):
    name, seconds = ("SIGKILL", "SIGABRT")[repeat % 2], random.uniform(0.2, 0.7)
    command = [sys.executable, "-S", str(KILLER), str(api_server.pid), name, str(seconds), os.environ[MOMENTS]]
    KILLERS.append(subprocess.Popen(command))
    client.chat(FOUNDING_REQUEST)
