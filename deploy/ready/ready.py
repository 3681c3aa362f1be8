"""Ready for the next job? Prints one line and ends with 0 ready, 1 not ready, 2 could not tell.

Installed by `make install-ready`; run by `python3 -I DEST/ready.py` (docs/after-handover.md).
"""

import sys

FOLDER = "{folder}"


def start():
    """Start the check from the copy beside this file; where that fails, 2 and no traceback."""
    if sys.version_info < (3, 11):
        print(
            "could not tell: Python 3.11 or newer is needed, this is %d.%d" % sys.version_info[:2]
        )
        return 2
    try:
        from pathlib import Path

        folder = Path(__file__).resolve().parent / FOLDER
        sys.path.insert(0, str(folder))
        from fixtures.ready import __main__ as ready

        return ready.main(folder=folder, began=ready.process_began())
    except Exception as error:
        print("could not tell: error of the check: %s: %.200r" % (type(error).__name__, error))
        return 2


if __name__ == "__main__":
    sys.exit(start())
