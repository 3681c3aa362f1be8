"""`-p tests.selftests.many`: every fleet is large, so that a small recorded run shows it."""

from fixtures.plugin import node_tests

node_tests.MAX_SEPARATE_TESTS = 1
