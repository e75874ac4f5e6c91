#!/bin/sh
# All steps that need a GPU: check the driver, build, test, sanitize, measure. A step has a time limit, writes results as
# it goes, and depends on no other; the exit status is 1 if one failed. Run again, a step continues where it stopped.
#   OUT=... PYTHON=... SECONDS_A_STEP=540 bench/gpu/run.sh [STEP...]
# Steps: driver build test triton/1 ... triton/4 sanitize micro bench teams profile; all of them if none is named.
# $OUT (default build/gpu) gets the logs and results, and gpu.tar.gz with all of them.
set -u
cd "$(dirname "$0")/../.."
PYTHON=${PYTHON:-python3}
OUT=${OUT:-build/gpu}
LIMIT=${SECONDS_A_STEP:-540}
# Tests run in parallel, as they wait for the CPU's results. More processes only wait longer to open the GPU.
PYTEST="-m pytest -q -rs -p no:cacheprovider -o faulthandler_timeout=120 -n ${TEST_JOBS:-8} --dist worksteal"
SHARDS=4
mkdir -p "$OUT/logs"
failed=0

# Without this check an older driver would skip every test, and no step would fail.
run_driver() {
    driver=$(nvidia-smi --query-gpu=driver_version --format=csv,noheader) || { echo "no driver: nvidia-smi failed"; return 1; }
    driver=$(echo "$driver" | head -n 1)
    toolkit=$(nvcc --version | sed -n 's/.*release \([0-9.]*\).*/\1/p')
    case $toolkit in
    12.*) least=525 ;;
    13.*) least=580 ;;
    *) echo "toolkit: expected CUDA 12 or 13; got ${toolkit:-no nvcc}" && return 1 ;;
    esac
    echo "driver $driver, CUDA $toolkit"
    [ "${driver%%.*}" -ge $least ] || { echo "driver: a build by CUDA $toolkit needs $least or newer; got $driver"; return 1; }
}

run_build() {
    # The build is for the GPU at hand, with its specific instructions if it has any (sm_90a).
    arch=$("$PYTHON" -c '
import torch
major, minor = torch.cuda.get_device_capability()
print(f"{major}{minor}{chr(97) if major in (9, 10) else str()}")') || return 1
    SPECDEC_CUDA=1 SPECDEC_CUDA_ARCHS=${SPECDEC_CUDA_ARCHS:-$arch} \
        "$PYTHON" -m pip install -q --no-build-isolation --no-deps -e . || return 1
    "$PYTHON" -c 'import specdec_kernels; print(specdec_kernels.build_info())'
}

run_test() {
    # shellcheck disable=SC2086
    "$PYTHON" $PYTEST tests -k "cuda-device or (test_cuda_gpu and not triton)"
}

# Triton compiles some 600 kernels, 5 s each, so a step runs every fourth test.
run_triton() {
    # shellcheck disable=SC2086
    PYTHONPATH=bench/gpu SHARD=$1/$SHARDS "$PYTHON" $PYTEST -p shard tests -k "triton-device or (test_cuda_gpu and triton)"
}

run_sanitize() {
    PYTHON=$PYTHON sh bench/gpu/sanitize.sh "$OUT/logs"
}

run_micro() {
    nvcc -O3 -std=c++17 -arch=native -I csrc/include -o "$OUT/micro" bench/gpu/micro.cu &&
        "$OUT/micro" >"$OUT/micro.json.new" && mv "$OUT/micro.json.new" "$OUT/micro.json" && cat "$OUT/micro.json"
}

run_bench() {
    "$PYTHON" bench/gpu/bench.py --out "$OUT" --seconds $((LIMIT - 60))
}

# Times chains by teams of each kind and several sizes.
run_teams() {
    status=0
    for team in local cluster2 cluster4 cluster8 grid2 grid4 grid8 grid16 grid32; do
        "$PYTHON" bench/gpu/bench.py --out "$OUT" --seconds $((LIMIT / 10)) --team $team || status=1
    done
    return $status
}

# The program runs anew for each group of metrics, so that no kernel finds its own code in the caches.
run_profile() {
    command -v ncu >/dev/null || { echo "skipped: no ncu"; return 0; }
    metrics=dram__bytes_read.sum,lts__t_bytes.sum,gpu__time_duration.sum,smsp__issue_active.avg.pct_of_peak_sustained_active
    for why in no_instruction long_scoreboard barrier membar math_pipe_throttle; do
        metrics=$metrics,smsp__warp_issue_stalled_${why}_per_warp_active.pct
    done
    ncu --metrics "$metrics" --kernel-name 'regex:race|chain' --profile-from-start off --replay-mode application \
        --cache-control none "$PYTHON" bench/gpu/bench.py --profile
}

steps="driver build test"
for shard in $(seq $SHARDS); do steps="$steps triton/$shard"; done
steps="$steps sanitize micro bench teams profile"

for step in ${*:-$steps}; do
    case " $steps " in
    *" $step "*) ;;
    *) echo "unknown step: $step" && exit 2 ;;
    esac
    name=${step%/*}
    log="$OUT/logs/$(echo "$step" | tr / -).txt"
    # A step is another shell, so that timeout can end it.
    if [ "${IN_STEP:-}" = "$step" ]; then
        "run_$name" "${step#*/}"
        exit $?
    fi
    echo "== $step"
    IN_STEP=$step timeout -k 10 "$LIMIT" sh "$0" "$step" >"$log" 2>&1 || { failed=1 && echo "FAILED: $step" >>"$log"; }
    tail -n 25 "$log"
    # One archive has all results. It exists before tar reads its folder, for tar fails if a folder changes meanwhile.
    : >"$OUT/gpu.tar.gz.new"
    tar -czf "$OUT/gpu.tar.gz.new" -C "$OUT" --exclude='gpu.tar.gz*' --exclude=micro . && mv "$OUT/gpu.tar.gz.new" "$OUT/gpu.tar.gz"
done
exit $failed
