#!/bin/sh
# Let the owners of participants/*.pub join. Needed once for each key, while the SuperLink runs.
set -eu
cd "$(dirname "$0")"
for key in participants/*.pub; do
  sh flwr.sh supernode register "$key" federation
done
