"""A rehearsal's workers in a folder of any name that Linux allows."""

import os

from tests.unit.collective.conftest import Rig


def test_any_name_of_the_temporary_folder(tmp_path, watched):
    """NCCL expands % in its log's name, and FileStore wants UTF-8: neither is the rehearsed fabric's fault."""
    folder = tmp_path / os.fsdecode(b"50%p-caf\xe9")
    folder.mkdir()
    rig = Rig(folder)
    try:
        outcome = rig.pair(0, 2)
        assert (outcome.status, outcome.transport) == ("pass", "SHM"), outcome.words
        assert rig.fabric.peer_access(rig.seats[0], rig.seats[1], "peer_write").status == "pass"
    finally:
        rig.fabric.close()
