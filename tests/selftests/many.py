"""`-p tests.selftests.many`: every fleet is large, so that a small recorded run shows it."""

from fixtures import areas

areas.LARGE = 1
