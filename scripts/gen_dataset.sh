#!/usr/bin/env bash
# Make the data sets that the model zoo's examples use, as RecordIO files:
#
#   scripts/gen_dataset.sh OUT_DIR [DIRECTORY_OF_THE_ORIGINAL_MNIST_FILES]
#
# gives OUT_DIR/{digits,heart,frappe,census,mnist}/{train,test}/data-*. Without the second argument MNIST is
# taken from Keras' copy (~/.keras/datasets), which is downloaded when it is not there.
# FRACTION=0.15 makes only that part of MNIST and of frappe.
set -euo pipefail

if [[ $# -lt 1 || $# -gt 2 || $1 == -* ]]; then
  sed -n '2,/^set/{/^set/d;s/^# \{0,1\}//p}' "$0"
  exit 2
fi
out=$1
source_dir=${2:-}
fraction=${FRACTION:-1}

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
python=$root/.venv/bin/python
[[ -x $python ]] || python=python3
make_data() { "$python" -m edl_allreduce.cli data make "$@" --overwrite; }

mnist=("--records_per_shard=4096" "--fraction=$fraction")
if [[ -n $source_dir ]]; then
  mnist+=("--source_dir=$source_dir")
elif [[ ! -e ${KERAS_HOME:-$HOME/.keras}/datasets/mnist.npz ]]; then
  echo "Fetching MNIST with Keras ..."
  if ! said=$(TF_CPP_MIN_LOG_LEVEL=3 "$python" -c 'import keras; keras.datasets.mnist.load_data()' 2>&1); then
    echo "error: Keras could not fetch MNIST: ${said##*$'\n'}" >&2
    echo "Copy its four original files (train-images-idx3-ubyte.gz and so on) or Keras' mnist.npz to this machine" >&2
    echo "and name their directory: $0 $out DIRECTORY" >&2
    exit 1
  fi
fi

make_data mnist "$out" "${mnist[@]}"
for dataset in digits heart census; do
  make_data "$dataset" "$out"
done
make_data frappe "$out" --fraction="$fraction"
