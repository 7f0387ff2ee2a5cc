#!/bin/sh
# Register the keys participants/*.pub, so that their owners can join. Run it once for new keys,
# while the SuperLink runs. For a key that is registered already, Flower prints a harmless error.
set -eu
umask 077
cd "$(dirname "$0")"
for key in participants/*.pub; do
  sh flwr.sh supernode register "$key" federation || echo "$key: see above"
done
