"""The fixtures of the tests that start whole runs: a sandbox, a checkout, a healthy run."""

import pytest

pytest.register_assert_rewrite("tests.selftests.cluster")

from tests.selftests.cluster import checkout, healthy, machine, sandbox, shared_sandbox, waiting  # noqa: E402

__all__ = ["checkout", "healthy", "machine", "sandbox", "shared_sandbox", "waiting"]


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """With -n and --dist loadgroup: one worker has all sandboxes that measure, others the files.

    They measure this host, and a healthy one must be seen healthy: never two of them at a time.
    """
    if not getattr(config.option, "loadgroup", False):  # as xdist tells its workers
        return
    for item in items:
        if item.get_closest_marker("xdist_group") is None:
            names = getattr(item, "fixturenames", ())
            group = "sandbox" if "machine" in names else item.path.stem
            item.add_marker(pytest.mark.xdist_group(group))
