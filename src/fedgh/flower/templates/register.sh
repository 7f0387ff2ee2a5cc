#!/bin/sh
# Let the owners of participants/*.pub join. Needed once for each key, while the SuperLink runs; one
# that is registered already is told so, and does no harm.
set -eu
umask 077
cd "$(dirname "$0")"
for key in participants/*.pub; do
  sh flwr.sh supernode register "$key" federation || echo "$key: see above"
done
