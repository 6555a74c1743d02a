#!/usr/bin/env bash
# What a borrowed CUDA device is asked first, in order of value, in under four minutes; each
# answer is written as it comes.  The same line goes on where the last one was cut off.
#
#     tests/gpu/run.sh [DIRECTORY]        (default: $OUT, else results/gpu)
#     PART=2 tests/gpu/run.sh [DIRECTORY] (a second call: all tests that need a device)
#     ONLY="newcomer lost" tests/gpu/run.sh [DIRECTORY]
#
# Needs a python with mhaprof's test extra; PYTHON names another one.  The exit code is 0 when
# every step ended as it should, 1 when one did not, 4 without a device (nothing is written).
set -uo pipefail
cd "$(dirname "$0")/../.."
export PYTHONPATH="$PWD:$PWD/tests/gpu_rehearsal${PYTHONPATH:+:$PYTHONPATH}"
exec "${PYTHON:-python3}" tests/gpu/steps.py "${1:-${OUT:-results/gpu}}" --part "${PART:-1}" --limit "${LIMIT_S:-235}"
