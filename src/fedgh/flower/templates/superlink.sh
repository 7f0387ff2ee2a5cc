#!/bin/sh
# Run the SuperLink, the single address that clients connect to. Ctrl-C ends it. It stores its data
# in superlink.db, so that it can be started again.
set -eu
umask 077
cd "$(dirname "$0")"
export FLWR_HOME="$PWD/flwr" FLWR_TELEMETRY_ENABLED=0 FLWR_DISABLE_UPDATE_CHECK=1
export PYTHONDONTWRITEBYTECODE=  # compiled once, not at every start
exec python3 -P -m fedgh.flower.command flower-superlink \
  --host "${FEDGH_BIND:-127.0.0.1}" --port "${FEDGH_PORT:-@PORT@}" \
  --database superlink.db --enable-supernode-auth \
  --isolation process --superexec-auth-secret-file superexec.secret \
  --disable-runtime-dependency-installation \
  --ssl-ca-certfile ca.crt --ssl-certfile server.pem --ssl-keyfile server.key
