import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

# Begun first, so that `make test`, which runs several files at a time, does not wait for one of them in the end.
LONGEST = ["test_train.py", "test_train_engines.py", "test_train_kill.py", "test_bench.py", "test_parity.py"]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: LONGEST.index(item.path.name) if item.path.name in LONGEST else len(LONGEST))
