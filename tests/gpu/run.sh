#!/usr/bin/env bash
# Run all checks that need a CUDA device, in under four minutes, and keep what they measured.
# Timing comes first, the implementations, whose flex kernels are compiled, last.
#
#     tests/gpu/run.sh [DIRECTORY]        (default: $OUT, else results/gpu)
#
# Writes cuda_timing.json (numbers and environment), junit.xml and pytest.log there.
# Needs a python with mhaprof's test extra; PYTHON names another one.  The exit code is
# pytest's; without a device it is 4 and nothing is written.
set -uo pipefail
cd "$(dirname "$0")/../.."
python="${PYTHON:-python3}"
out="${1:-${OUT:-results/gpu}}"
limit_s=235

if ! "$python" -c 'import sys, torch; sys.exit(not torch.cuda.is_available())'; then
    echo "no CUDA device (or no torch in $python): nothing was measured" >&2
    exit 4
fi
mkdir -p "$out"
export PYTHONPATH="$PWD${PYTHONPATH:+:$PYTHONPATH}"
export MHAPROF_GPU_RESULTS="$out/cuda_timing.json"
# The interrupt lets pytest write what it has when the time is over.
timeout --signal=INT --kill-after=10 "$limit_s" \
    "$python" -m pytest -m gpu tests/gpu tests/sweep/test_gpu_workers.py tests/attention/test_on_a_gpu.py \
    -v --durations=10 --junitxml="$out/junit.xml" 2>&1 | tee "$out/pytest.log"
code=${PIPESTATUS[0]}
echo "results in $out, exit code $code"
exit "$code"
