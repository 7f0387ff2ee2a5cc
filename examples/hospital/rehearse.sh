#!/bin/sh
# Start both clients and the server on this machine, with TLS and keys: rehearse.sh [FOLDER]
set -eu
cd "$(dirname "$0")"
folder="${1:-federation}"
fedgh flower init "$folder" federation.toml
echo 'app="hospital:app"' >> "$folder/participants/0/node.conf"
echo 'app="clinic:app"' >> "$folder/participants/1/node.conf"
fedgh flower up "$folder"
