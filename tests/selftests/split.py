"""`-p tests.selftests.split`: a verdict of a few rows is written as that of a very large run."""

from fixtures.records import verdict_file

verdict_file.MAX_ROWS = 10
