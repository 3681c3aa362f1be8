"""The fixtures of the tests that start whole runs: a sandbox, a checkout, a healthy run."""

import pytest

pytest.register_assert_rewrite("tests.selftests.cluster")

from tests.selftests.cluster import checkout, healthy, machine, sandbox, shared_sandbox, waiting  # noqa: E402

__all__ = ["checkout", "healthy", "machine", "sandbox", "shared_sandbox", "waiting"]
