#!/bin/bash
# One round of patrol, then what all visits show. Started by cron, a systemd timer or scrontab.
#
# Settings are variables of the environment, as in patrol.env.example:
#   PATROL_STATE        a directory on the shared filesystem
#   PATROL_CERTIFICATE  the run directory of the accepted run
#   PATROL_VISIT        options of `python -m fixtures.patrol visit`, as --share=0.05 --partition=gpu
#   PATROL_REPORT       options of `python -m reports patrol`, as --hook=... --textfile=...
#   PATROL_PYTHON       interpreter (default: .venv/bin/python of the checkout)
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
: "${PATROL_STATE:?name a directory on the shared filesystem}"
: "${PATROL_CERTIFICATE:?name the run directory of the accepted run}"
python="${PATROL_PYTHON:-.venv/bin/python}"

# shellcheck disable=SC2086 # options are words
"$python" -m fixtures.patrol visit "$PATROL_STATE" ${PATROL_VISIT:-}
# Nobody was visited yet: nothing to report. A log that is gone after a report is news.
[ -s "$PATROL_STATE/visits.jsonl" ] || [ -e "$PATROL_STATE/status.json" ] || exit 0
# 1 is an accused GPU, 2 a suspect measurement or somebody who is silent: findings, which the page
# and the hook tell.
# shellcheck disable=SC2086
"$python" -m reports patrol "$PATROL_STATE" --certificate "$PATROL_CERTIFICATE" \
  ${PATROL_REPORT:-} || [ $? -le 2 ]
