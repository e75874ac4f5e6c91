#!/bin/sh
# Everything that needs a GPU: build, test, sanitize, bench. Logs and results go to $OUT (default build/gpu).
#   OUT=... PYTHON=... bench/gpu/run.sh [build] [test] [sanitize] [bench]      all four if none is named
# A step that fails does not stop the others; the exit status tells.
set -u
cd "$(dirname "$0")/../.."
PYTHON=${PYTHON:-python3}
OUT=${OUT:-build/gpu}
mkdir -p "$OUT"
failed=0

run_build() {
    # For the GPU at hand, with its own instructions where it has some (sm_90a).
    arch=$("$PYTHON" -c '
import torch
major, minor = torch.cuda.get_device_capability()
print(f"{major}{minor}{chr(97) if major in (9, 10) else str()}")') || return 1
    SPECDEC_CUDA=1 SPECDEC_CUDA_ARCHS=${SPECDEC_CUDA_ARCHS:-$arch} \
        "$PYTHON" -m pip install -q --no-build-isolation --no-deps -e . || return 1
    "$PYTHON" -c 'import specdec_kernels; print(specdec_kernels.build_info())'
}

run_test() {
    "$PYTHON" -m pytest -q -rs tests/backends/test_cuda_gpu.py &&
        "$PYTHON" -m pytest -q tests -k "cuda-device or triton-device"
}

run_sanitize() {
    PYTHON=$PYTHON sh bench/gpu/sanitize.sh "$OUT"
}

run_bench() {
    "$PYTHON" bench/gpu/bench.py --out "$OUT"
}

for step in ${*:-build test sanitize bench}; do
    case $step in
    build | test | sanitize | bench) ;;
    *) echo "unknown step: $step" && exit 2 ;;
    esac
    echo "== $step"
    { "run_$step" 2>&1 || echo "FAILED: $step"; } | tee "$OUT/$step.txt"
    if grep -q "^FAILED: $step\$" "$OUT/$step.txt"; then failed=1; fi
done
exit $failed
