#!/bin/sh
# Register the keys participants/*.pub, so that their owners can join, while the SuperLink runs. It
# can be repeated. Flower's number of each node is written into participants/K.node, see revoke.sh.
set -eu
umask 077
cd "$(dirname "$0")"
code=0
for key in participants/*.pub; do
  answer="$(sh flwr.sh supernode register "$key" federation --format json)" || true
  node="$(echo "$answer" | sed -n 's/.*"node-id": *"\{0,1\}\([0-9]\{1,\}\).*/\1/p')"
  if [ -n "$node" ]; then
    echo "$node" > "${key%.pub}.node"
    echo "$key: registered as node $node"
  elif [ "${answer#*already in use}" = "$answer" ]; then
    echo "$key: $answer" >&2
    code=1
  elif [ -f "${key%.pub}.node" ]; then
    echo "$key: registered already"
  else
    echo "$key: this key was registered before; if it was revoked, its owner needs a new one"
  fi
done
exit "$code"
