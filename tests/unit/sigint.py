"""Ctrl-C for a child process, also where this one was started to ignore it (by a shell's `&` in a script)."""

import signal


def heed_sigint() -> None:
    """For Popen's `preexec_fn`: what is ignored stays so over exec."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
