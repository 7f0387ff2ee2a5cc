#!/bin/sh
# Flower's own command, configured for this SuperLink:
#   flwr.sh supernode register participants/0.pub federation
#   flwr.sh supernode list federation
#   flwr.sh log RUN-ID federation --show
set -eu
umask 077
cd "$(dirname "$0")"
export FLWR_HOME="$PWD/flwr" FLWR_TELEMETRY_ENABLED=0 FLWR_DISABLE_UPDATE_CHECK=1
export PYTHONDONTWRITEBYTECODE=  # compiled once, not at every start
mkdir -p flwr
cat > flwr/config.toml <<END
[superlink]
default = "federation"
[superlink.federation]
address = "127.0.0.1:${FEDGH_PORT:-@PORT@}"
root-certificates = "$PWD/ca.crt"
END
exec flwr "$@"
