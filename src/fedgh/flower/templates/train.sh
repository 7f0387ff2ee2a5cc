#!/bin/sh
# Start training, or continue after the last completed round: train.sh [RUN-FOLDER]
set -eu
umask 077
out="${1:-$(dirname "$0")/../run}"
case "$out" in /*) ;; *) out="$PWD/$out" ;; esac
cd "$(dirname "$0")"
exec sh flwr.sh run app federation ${FEDGH_FORMAT:+--format "$FEDGH_FORMAT"} --run-config \
  "experiment=\"$PWD/../experiment.toml\" participants=\"$PWD/participants\" out=\"$out\""
