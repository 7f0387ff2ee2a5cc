#!/bin/sh
# Join the federation as client @CLIENT@. Ctrl-C leaves it; the next start continues with the state
# in states/. `fedgh flower join` does the same, and explains why the server refuses the client.
set -eu
umask 077
cd "$(dirname "$0")"
export FLWR_HOME="$PWD/flwr" FLWR_TELEMETRY_ENABLED=0 FLWR_DISABLE_UPDATE_CHECK=1
export PYTHONDONTWRITEBYTECODE=  # compiled once, not at every start
port="${FEDGH_NODE_PORT:-@NODE_PORT@}"
# This process runs the client's code, one process for each message. Both end together.
python3 -P -m fedgh.flower.executor "127.0.0.1:$port" $$ &
export FEDGH_EXECUTOR=$!
exec python3 -P -m fedgh.flower.command flower-supernode \
  --superlink "${FEDGH_SUPERLINK:-@HOST@:@PORT@}" --root-certificates ca.crt \
  --auth-supernode-private-key key --host 127.0.0.1 --port "$port" --isolation process \
  --node-config "$(grep -v '^[[:space:]]*#' node.conf | tr '\n' ' ')"
