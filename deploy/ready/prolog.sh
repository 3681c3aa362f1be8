#!/bin/bash
# A node looked at before each job: for Prolog= in slurm.conf.
#
# In a Prolog any status but 0 drains the node. So only "not ready" ends with 1; "could not tell" lets
# the job start, with a line in the log. Settings, as variables in ready.env beside this file:
#   READY_PYTHON   interpreter, 3.11 or newer (default: python3)
#   READY_OPTIONS  options of ready.py
#   READY_PATH     where scontrol is, if not in the usual places
PATH="/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin:/opt/slurm/bin"
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
# shellcheck disable=SC1091 # of the site
[ -r "$here/ready.env" ] && . "$here/ready.env"
PATH="$PATH${READY_PATH:+:$READY_PATH}"
export PATH
node="${SLURMD_NODENAME:-$(hostname -s)}"

# shellcheck disable=SC2086 # options are words
line="$(timeout -k 1 12 "${READY_PYTHON:-python3}" -I "$here/ready.py" --node="$node" \
  ${READY_OPTIONS:-} 2>/dev/null </dev/null)"
status=$?
[ -n "$line" ] || line="could not tell: ready.py ended with $status and without a line"
logger -t acceptance-ready "$line" 2>/dev/null || true
if [ "$status" -ne 1 ] || [ "${line#not ready: }" = "$line" ]; then
  exit 0
fi
# Slurm's own reason would be "Prolog error"; one that is there already stays.
timeout 5 scontrol update NodeName="$node" State=DRAIN \
  Reason="acceptance-ready: ${line#not ready: }" >/dev/null 2>&1
echo "acceptance-ready: $line" >&2
exit 1
