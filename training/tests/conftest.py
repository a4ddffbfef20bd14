"""Lets the tests import the training scripts."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
