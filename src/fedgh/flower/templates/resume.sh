#!/bin/sh
# Start training again if it has stopped before the end: resume.sh [RUN-FOLDER]. For a timer: it does
# nothing while a run is active, or when the run in the folder is finished.
set -eu
umask 077
out="${1:-$(dirname "$0")/../run}"
case "$out" in /*) ;; *) out="$PWD/$out" ;; esac
cd "$(dirname "$0")"
if [ ! -f "$out/config.toml" ]; then
  echo "$out is not a run that has begun; start it with train.sh"
elif [ -f "$out/summary.json" ]; then
  echo "$out is finished"
elif sh flwr.sh list federation --format json | grep -q '"status": *"\(pending\|starting\|running\)'; then
  echo "a run is active"
else
  exec sh train.sh "$out"
fi
