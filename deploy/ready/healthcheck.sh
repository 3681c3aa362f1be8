#!/bin/bash
# A node looked at every few minutes: for HealthCheckProgram= in slurm.conf.
#
# The status of a HealthCheckProgram changes nothing. So this drains the node when it is not ready, by a
# reason of its own, and gives it back when it is ready again, if the reason is still its own: not
# what an operator or another program drained. "could not tell" changes nothing, with a line in the log.
# Settings, as variables in ready.env beside this file: as prolog.sh.
PATH="/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin:/opt/slurm/bin"
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
# shellcheck disable=SC1091 # of the site
[ -r "$here/ready.env" ] && . "$here/ready.env"
PATH="$PATH${READY_PATH:+:$READY_PATH}"
export PATH
node="${SLURMD_NODENAME:-$(hostname -s)}"
own="acceptance-ready: "

# shellcheck disable=SC2086 # options are words
line="$(timeout -k 1 12 "${READY_PYTHON:-python3}" -I "$here/ready.py" --node="$node" \
  ${READY_OPTIONS:-} 2>/dev/null </dev/null)"
status=$?
[ -n "$line" ] || line="could not tell: ready.py ended with $status and without a line"
case "$status $line" in
  "0 ready: "*) verdict=ready ;;
  "1 not ready: "*) verdict=not-ready ;;
  *) verdict=unknown ;;
esac
[ "$verdict" = ready ] || logger -t acceptance-ready "$line" 2>/dev/null || true
[ "$verdict" = unknown ] && exit 0

# Flags and reason of the node; a node that Slurm does not show is left alone.
shown="$(timeout 10 scontrol -o show node "$node" 2>/dev/null)" || exit 0
state="$(sed -n 's/^.* State=\([^ ]*\) .*$/\1/p' <<<"$shown")"
reason="$(sed -n 's/^.* Reason=//p' <<<"$shown")"
case "$verdict $state" in
  "not-ready "*DRAIN*) ;; # somebody has, and keeps the reason
  "not-ready "?*)
    timeout 10 scontrol update NodeName="$node" State=DRAIN Reason="$own${line#not ready: }"
    ;;
  "ready "*DRAIN*)
    if [ "${reason#"$own"}" != "$reason" ]; then
      timeout 10 scontrol update NodeName="$node" State=RESUME &&
        logger -t acceptance-ready "given back: $line" 2>/dev/null
    fi
    ;;
esac
exit 0
