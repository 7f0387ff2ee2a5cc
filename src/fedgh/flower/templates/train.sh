#!/bin/sh
# Start training, or go on after the last completed round: train.sh [RUN-FOLDER]
set -eu
cd "$(dirname "$0")"
out="${1:-../run}"
case "$out" in /*) ;; *) out="$PWD/$out" ;; esac
exec sh flwr.sh run app federation ${FORMAT:+--format "$FORMAT"} --run-config \
  "experiment=\"$PWD/../experiment.toml\" participants=\"$PWD/participants\" out=\"$out\""
