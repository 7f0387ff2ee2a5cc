#!/bin/sh
# Revoke the key of client K: revoke.sh K. Its node is disconnected; the key cannot be used again.
set -eu
cd "$(dirname "$0")"
node="participants/${1:?give the number of the client}.node"
if [ ! -f "$node" ]; then
  echo "$node is missing: find the node with: sh server/flwr.sh supernode list federation" >&2
  echo "then: sh server/flwr.sh supernode unregister NODE federation" >&2
  exit 1
fi
sh flwr.sh supernode unregister "$(cat "$node")" federation
rm "$node"
