"""What NCCL's RAS says (format strings of src/ras/client_support.cc), as it came or put together."""

HEAD = """NCCL version 2.28.9 compiled with CUDA 13.0
CUDA runtime version 13000, driver version 13000

Job summary
===========

  Nodes  Processes         GPUs  Processes     GPUs
(total)   per node  per process    (total)  (total)
      2          1            1          2        2

Communicators... (0.00s)
=============

Group     Comms     Nodes     Ranks     Ranks     Ranks    Status  Errors
    #  in group  per comm  per node  per comm  in group
"""


def answer(row, errors="", warnings=""):
    """A whole answer: the table's row, then the two sections."""
    return f"{HEAD}{row}\n\nErrors\n======\n\n{errors}Warnings\n========\n\n{warnings}"


def indented(*lines):
    return "".join(f"  {line}\n" for line in lines) + "\n"


def place(pid, gpu="0"):
    return f"GPU {gpu} managed by process {pid} on node 127.0.0.1"


IDLE = answer("    0         1         2         1         2         2   RUNNING      OK")
# As 2.28.9 said it of two ranks on one GPU, the second stopped by SIGSTOP, 4.0 s after the question ("timeout 1").
STOPPED = answer(
    "    0         1         1         1         2         1   RUNNING  INCOMPLETE",
    "INCOMPLETE\n"
    + indented("Missing communicator data from 1 job process", "Process 502 on node 127.0.0.1 managing GPU 0")
    + "#0-0 (00c8f5e1a2b3d4e5) INCOMPLETE\n"
    + indented("Missing communicator data from 1 rank", f"Rank 1 -- {place(502)}"),
    "TIMEOUT\n" + indented("Encountered 1 communication timeout while gathering communicator data"),
)
KILLED = answer(
    "    0         1         1         1         2         1   RUNNING  INCOMPLETE,ERROR",
    "DEAD\n"
    + indented(
        "1 job process is considered dead (unreachable via the RAS network)",
        "Process 502 on node 127.0.0.1 managing GPU 0",
    )
    + "#0-0 (00c8f5e1a2b3d4e5) INCOMPLETE\n"
    + indented("Missing communicator data from 1 rank", f"Rank 1 -- {place(502)}")
    + "#0-0 (00c8f5e1a2b3d4e5) ERROR\n"
    + indented("Asynchronous error on 1 rank", f"Rank 0 reported Remote process error -- {place(501)}"),
)
