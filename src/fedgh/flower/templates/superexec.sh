#!/bin/sh
# Run the server app of the federation for the SuperLink, on the same machine.
set -eu
umask 077
cd "$(dirname "$0")"
export FLWR_HOME="$PWD/flwr" FLWR_TELEMETRY_ENABLED=0 FLWR_DISABLE_UPDATE_CHECK=1
export PYTHONDONTWRITEBYTECODE=  # compiled once, not at every start
exec python3 -P -m fedgh.flower.command flower-superexec \
  --runtime-api-address "127.0.0.1:${FEDGH_PORT:-@PORT@}" \
  --root-certificates ca.crt --superexec-auth-secret-file superexec.secret
