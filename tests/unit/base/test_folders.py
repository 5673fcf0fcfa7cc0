"""Temporary folders: who removes them."""

import os

from streamgen.base.folders import folder_of


class Owner:
    """Something that can be referred to weakly."""


def test_a_folder_lives_as_long_as_its_owner() -> None:
    """In the process that made it: one that is forked from it lets go of a copy."""
    owner = Owner()
    place = folder_of(owner)
    (place / "file").write_text("")
    if not (child := os.fork()):
        del owner
        os._exit(0 if place.exists() else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert place.exists()
    del owner
    assert not place.exists()
