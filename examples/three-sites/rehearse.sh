#!/bin/sh
# Start three sites and the server on this machine, with TLS and keys; afterwards use the model of
# one site and check it: rehearse.sh [FOLDER]
set -eu
cd "$(dirname "$0")"
folder="${1:-federation}"
fedgh flower init "$folder" federation.toml
python make_images.py "$folder"

# site K NETWORK SIZE: name the network of site K, and the size to which it scales its images
site() {
  cat >> "$folder/participants/$1/node.conf" <<END
app="fedgh.flower.own_data:app"
path="images"
network="$2"
image-size=$3
END
}
site 0 mlp 8            # 8 x 8 pixels
site 1 cnn5 32          # 16 x 16 pixels, scaled to those that the network takes
site 2 resnet18@1/8 24  # 24 x 24 pixels

fedgh flower up "$folder"
site="$folder/participants/1"
fedgh flower predict "$site" "$site/new" --csv "$site/new.csv"
fedgh flower export "$site" --format torch-export
python check.py "$site"
