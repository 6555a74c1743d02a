"""Every implementation does exactly the products that the closed form counts."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from mhaprof import attention, formulas
from mhaprof.attention.base import canonical_weights, make_inputs
from mhaprof.spec import AttentionSpec
from mhaprof.units import flops_of
from mhaprof.verification import CASES

TRACEABLE = [name for name in attention.names() if attention.get(name).counter_note is None]


def built(name: str, spec: AttentionSpec) -> torch.nn.Module | None:
    implementation = attention.get(name)
    if implementation.rejects(spec, device="meta", dtype="float32") is not None:
        return None
    with torch.device("meta"):
        return implementation.build(spec)


@pytest.mark.parametrize("name", TRACEABLE)
def test_torch_counts_the_closed_form_on_every_case(name: str) -> None:
    for case, spec in CASES.items():
        module = built(name, spec)
        if module is None:
            continue
        inputs = make_inputs(spec, dtype=torch.float32, device="meta")
        with torch.no_grad(), FlopCounterMode(display=False) as counter:
            module(*inputs)
        assert counter.get_total_flops() == flops_of(formulas.total_macs(spec)), case


@pytest.mark.parametrize("name", attention.names())
def test_a_module_has_the_closed_forms_parameters(name: str) -> None:
    for case, spec in CASES.items():
        module = built(name, spec) if name != "flex" else None
        if module is not None:
            counted = formulas.params(spec)
            expected = counted.projections + counted.norms + counted.sinks
            assert sum(p.numel() for p in module.parameters()) == expected, case


@pytest.mark.parametrize("name", attention.names())
def test_loading_writes_every_parameter(name: str) -> None:
    for case, spec in CASES.items():
        implementation = attention.get(name)
        if implementation.rejects(spec, device="cpu", dtype="float64") is not None:
            continue
        module = implementation.build(spec).double()
        with torch.no_grad():
            for parameter in module.parameters():
                parameter.fill_(float("nan"))
        weights = canonical_weights(spec, dtype=torch.float64, device="cpu")
        implementation.load(module, spec, weights)
        assert not any(p.isnan().any() for p in module.parameters()), case


def test_building_on_meta_does_not_import_the_compiler() -> None:
    code = (
        "import sys, torch\n"
        "from mhaprof import attention\n"
        "from mhaprof.spec import AttentionSpec\n"
        "spec = AttentionSpec(qkv_bias=True, out_bias=True, causal='top-left', window=9)\n"
        "with torch.device('meta'):\n"
        "    for name in ('eager', 'eager-separate', 'per-head', 'sdpa'):\n"
        "        attention.get(name).build(spec)\n"
        "print('torch._dynamo' in sys.modules)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120
    )
    assert done.stdout.strip() == "False"
