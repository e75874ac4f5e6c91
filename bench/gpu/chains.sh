#!/bin/sh
# Fifteen minutes of a device for the chain kernels: a build, the device tests of chains, then times beside vLLM's, with
# both kinds of kernels of race_sample in turns. Steps can be left out, the build if its objects are there already.
#   OUT=... PYTHON=... SECONDS_A_STEP=300 bench/gpu/chains.sh [build] [test] [time]
set -u
cd "$(dirname "$0")/../.."
PYTHON=${PYTHON:-python3}
OUT=${OUT:-build/gpu}
mkdir -p "$OUT/logs"
[ $# -gt 0 ] || set -- build test time
failed=$OUT/logs/failed  # a file, for a step's shell ends with it
rm -f "$failed"
for step in "$@"; do
    case $step in
    build) OUT=$OUT PYTHON=$PYTHON sh bench/gpu/run.sh driver build ;;
    # The tests take 90 s on the device. race_sample has two kinds of kernels.
    test)
        tests() { timeout 90 "$PYTHON" -m pytest -q -p no:cacheprovider -n 8 --dist worksteal "$@" || touch "$failed"; }
        tests tests/ops/test_verify_chain.py tests/backends/test_cuda_gpu.py -k "cuda-device or cuda_gpu and chain"
        for few_rows in 0 1; do
            export SPECDEC_CUDA_FEW_ROWS=$few_rows
            tests tests/ops/test_race_sample.py -k cuda-device
        done
        ;;
    time) timeout "$((${SECONDS_A_STEP:-300} + 60))" "$PYTHON" bench/gpu/chains.py --out "$OUT/chains.jsonl" \
        --seconds "${SECONDS_A_STEP:-300}" || touch "$failed" ;;
    *) echo "no such step: $step" && touch "$failed" ;;
    esac 2>&1 | tee "$OUT/logs/chains_$step.log"
done
[ ! -e "$failed" ]
