"""Killed training ends with the bytes of undisturbed training; tests/kills.py does the same a hundred times."""

import random

import kills
import pytest


@pytest.mark.slow
def test_killed_training_ends_with_the_bytes_of_undisturbed_training():
    counted = kills.rounds("nivMF", 2, random.Random(0))
    assert counted["kills"] == 2 and counted["finished"] >= 1
