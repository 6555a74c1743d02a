"""A model's config.json -> one spec for each distinct kind of its attention layers."""

from __future__ import annotations

import functools
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from mhaprof.errors import SpecError, UsageError
from mhaprof.huggingface.diffusion import JOINT, read_diffusion
from mhaprof.huggingface.facts import is_causal
from mhaprof.huggingface.family import Seq2Seq
from mhaprof.huggingface.formats import translated
from mhaprof.huggingface.keys import KeyFault, Keys, Locate, architectures, refusal, shown
from mhaprof.huggingface.parts import Part, descend, missing
from mhaprof.huggingface.patterns import type_key
from mhaprof.huggingface.plan import LayerKind, ModelPlan, distinguish
from mhaprof.huggingface.stack import Draft, Run, Stack, read_stack
from mhaprof.huggingface.towers import (
    Tower,
    notes_of,
    refused_types,
    row_of,
    seq2seq_rows,
    states,
)
from mhaprof.huggingface.unknown import assumed_family
from mhaprof.spec import DEFAULT_TOKENS, AttentionSpec, Phase

COMPOSITES = ("encoder-decoder", "vision-encoder-decoder", "speech-encoder-decoder")


@dataclass(frozen=True, kw_only=True)
class Request:
    """What is asked of a config: tokens, batch, phase, and which part of it."""

    tokens: int
    batch: int
    phase: Phase
    kv_tokens: int | None
    part: Part
    partial: bool


def without(values: Mapping[str, Any], names: Collection[str]) -> dict[str, Any]:
    """Return an object of keys without some of them, at every depth."""
    return {
        name: without(value, names) if isinstance(value, Mapping) else value
        for name, value in values.items()
        if name not in names
    }


def layers_of(
    config: Mapping[str, Any],
    *,
    source: str = "config.json",
    tokens: int | None = None,
    batch: int = 1,
    phase: Phase = "prefill",
    kv_tokens: int | None = None,
    part: Part = "text",
    partial: bool = False,
    ignored: Collection[str] = (),
    locate: Locate | None = None,
) -> ModelPlan:
    """Return the attention layers of the model that a raw config.json describes.

    ``tokens`` are the tokens of the text (1024 if not given), in phase ``decode`` those
    of the cache, the new one included; a vision encoder makes its own from image and
    patch size.  ``kv_tokens`` are those of the sequence that cross-attention reads: what
    the file fixes, else ``tokens``; in phase ``decode`` of a model without
    cross-attention they are those of the cache, as in a spec, and ``tokens`` may be 1.
    ``part`` chooses the tower of a multimodal file.
    ``partial`` leaves layers out of which nothing is known, and counts them; ``ignored``
    are keys that are read as if the file did not have them.

    Raises UsageError (ConfigError with ``locate``, which finds a key in the file) naming
    every key that is missing, of the wrong type, impossible or contradictory.
    """
    if not isinstance(config, Mapping):
        raise UsageError(f"{source}: {shown(config)} is not an object of keys")
    request = Request(
        tokens=DEFAULT_TOKENS if tokens is None else tokens,
        batch=batch,
        phase=phase,
        kv_tokens=kv_tokens,
        part=part,
        partial=partial,
    )
    _check_request(request)
    lacking = [name for name in ignored if without(config, {name}) == config]
    if lacking:
        raise UsageError(f"{source}: {', '.join(lacking)}: no such key to ignore")
    reading = _Reading(source=source, request=request, locate=locate, tokens_given=tokens)
    reading.warnings += [f"{name} is ignored, as was asked" for name in ignored]
    values, said = translated(without(config, ignored) if ignored else config, source=source)
    reading.warnings += said
    stacks, model_type = reading.stacks(Keys(values=values))
    kinds = reading.kinds(stacks)
    reads_another = any(
        kind.is_cross
        or kind.name.startswith(JOINT)
        or (phase == "prefill" and kind.spec.kv_tokens == kv_tokens)
        for kind in kinds
    )

    def rebuild(count: int) -> ModelPlan:
        return layers_of(
            config,
            source=source,
            tokens=count,
            batch=batch,
            phase=phase,
            kv_tokens=kv_tokens if reads_another else None,
            part=part,
            partial=partial,
            ignored=ignored,
            locate=locate,
        )

    if kv_tokens is not None and not reads_another:
        if phase == "decode":
            if tokens not in (None, 1, kv_tokens):
                raise UsageError(
                    f"{source}: tokens {tokens} and kv_tokens {kv_tokens} are both of the "
                    "cache; give one of them"
                )
            return rebuild(kv_tokens)
        reading.warnings.append(
            f"kv_tokens {kv_tokens} is not used: no layer reads another sequence"
        )
    return ModelPlan(
        source=source,
        model_type=model_type,
        kinds=kinds,
        apart=tuple(each for stack in stacks for each in stack.apart),
        warnings=tuple(dict.fromkeys(reading.warnings)),
        rebuild=functools.lru_cache(maxsize=256)(rebuild),
    )


def _check_request(request: Request) -> None:
    """Raise SpecError for tokens, batch or phase that no spec could have."""
    AttentionSpec(phase=request.phase)
    AttentionSpec(
        batch=request.batch,
        tokens=request.tokens,
        kv_tokens=1 if request.kv_tokens is None else request.kv_tokens,
    )


class _Reading:
    """One reading of one file: what was asked, and the warnings so far."""

    def __init__(
        self, *, source: str, request: Request, locate: Locate | None, tokens_given: int | None
    ) -> None:
        self.source = source
        self.request = request
        self.locate = locate
        self.tokens_given = tokens_given
        self.warnings: list[str] = []

    def stacks(self, keys: Keys) -> tuple[list[Stack], str]:
        """Return every stack of the part asked for, and the model_type it is of."""
        model_type = keys.word("model_type") or ""
        self._refuse_type(keys, model_type)
        if "_class_name" in keys.values and not model_type:
            stacks, model_type = [self._diffusion(keys)], str(keys.values["_class_name"])
        elif model_type in COMPOSITES:
            stacks = self._composite(keys)
        else:
            keys, model_type = self._part(keys, model_type)
            self._refuse_type(keys, model_type)
            if model_type in seq2seq_rows():
                stacks = self._seq2seq(keys, seq2seq_rows()[model_type], model_type)
            else:
                stacks = [self._single(keys, model_type)]
        self._refuse(keys)
        self._refuse_unsupported(keys, stacks)
        return stacks, model_type or "unknown"

    def _diffusion(self, keys: Keys) -> Stack:
        """Read a transformer of diffusers, which has no phase decode."""
        if self.request.phase == "decode" or self.request.part != "text":
            raise UsageError(
                f"{self.source}: _class_name: a transformer of diffusers has no phase decode "
                "and no parts; give --phase prefill and no --part"
            )
        run = Run(
            tokens=self.request.tokens,
            batch=self.request.batch,
            phase="prefill",
            source_tokens=self.request.kv_tokens,
        )
        given = self.tokens_given is not None
        return read_diffusion(keys, run, tokens_given=given, warnings=self.warnings)

    def _refuse_type(self, keys: Keys, model_type: str) -> None:
        """Refuse a family that is known not to be as any row could say it."""
        why = refused_types().get(model_type)
        if why is not None and (keys.path or self.request.part == "text"):
            keys.fault("model_type", f"{model_type} is not counted: {why}")
        self._refuse(keys)

    def _refuse(self, keys: Keys) -> None:
        if keys.faults:
            raise refusal(self.source, keys.faults, self.locate)

    def _refuse_unsupported(self, keys: Keys, stacks: Sequence[Stack]) -> None:
        """Refuse layers of which nothing is known, by their names, unless ``partial``."""
        words = {each.name for stack in stacks for each in stack.apart if not each.known}
        if words and not self.request.partial:
            self._unsupported(keys, sorted(words), any(stack.drafts for stack in stacks))
        if not any(stack.drafts for stack in stacks):
            words |= {each.name for stack in stacks for each in stack.apart}
            keys.fault(type_key(keys), f"{', '.join(sorted(words))}: no layer is left to count")
            self._refuse(keys)

    def _unsupported(self, keys: Keys, words: Sequence[str], others: bool) -> None:
        """Refuse kinds of layers; ``others``: what is left without them can be counted."""
        fault = KeyFault(
            path=(*keys.path, type_key(keys)),
            message=f"{', '.join(words)} is not attention over keys that mhaprof counts"
            + ("; --partial leaves these layers out and says so" if others else ""),
        )
        raise refusal(self.source, [fault], self.locate)

    def _part(self, keys: Keys, model_type: str) -> tuple[Keys, str]:
        """Descend into the part of a composite file that was asked for."""
        found = descend(keys, model_type, self.request.part, self.warnings)
        self._refuse(keys)
        if found is None:
            raise UsageError(f"{self.source}: {missing(keys, self.request.part)}")
        return found

    def _row(self, keys: Keys, model_type: str) -> Tower:
        """Return the family's row, or what is assumed of an unknown one, with a warning."""
        row = row_of(model_type)
        if row is not None:
            return row
        family = assumed_family(
            keys, model_type or "missing", self.warnings, tower=self.request.part != "text"
        )
        return Tower(family=replace(family, states=states()))

    def _single(self, keys: Keys, model_type: str) -> Stack:
        """Read a model of one stack: a decoder, an encoder or a vision tower."""
        row = self._row(keys, model_type)
        keys = row.completed(keys, self.warnings)
        family, request = row.family, self.request
        tokens, source_tokens = request.tokens, request.kv_tokens
        if family.image is not None or row.tower is not None:
            tokens = self._own_tokens(keys, row)
        if not is_causal(keys, family) and request.phase == "decode":
            raise UsageError(
                f"{self.source}: model_type: {model_type} attends in both directions and has no "
                "phase decode; give --phase prefill"
            )
        crosses = is_causal(keys, family) and keys.flag("add_cross_attention")
        if (family.cross_layers or crosses) and source_tokens is None:
            self.warnings.append(
                f"cross-attention reads as many tokens as there are: {tokens}; "
                "--kv-tokens says otherwise"
            )
        run = Run(
            tokens=tokens, batch=request.batch, phase=request.phase, source_tokens=source_tokens
        )
        return read_stack(keys, family, run, warnings=self.warnings, crosses_everywhere=crosses)

    def _own_tokens(self, keys: Keys, row: Tower) -> int:
        """Return the tokens that an image or a sound makes, unless others were asked for."""
        made = row.tokens(keys)
        if made is None:
            if self.tokens_given is None and not keys.faults:
                self.warnings.append(
                    f"{self.request.tokens} tokens: the file does not fix how many an input "
                    "makes; --tokens says otherwise"
                )
            return self.request.tokens
        if self.tokens_given not in (None, made):
            self.warnings.append(
                f"tokens {self.tokens_given} as asked; one input of the size in the file "
                f"makes {made}"
            )
        return self.tokens_given or made

    def _seq2seq(self, keys: Keys, row: Seq2Seq, model_type: str) -> list[Stack]:
        """Read an encoder-decoder; in decode the encoder has run already."""
        self.warnings += notes_of(model_type).values()
        request = self.request
        source = request.kv_tokens
        if row.source_tokens is not None:
            fixed = keys.size(row.source_tokens, required=source is None)
            source = source or fixed
        encoder_run = Run(tokens=source or request.tokens, batch=request.batch, phase="prefill")
        decoder_run = Run(
            tokens=request.tokens,
            batch=request.batch,
            phase=request.phase,
            source_tokens=source or request.tokens,
        )
        encoder = read_stack(
            keys, row.encoder, encoder_run, warnings=self.warnings, prefix="encoder "
        )
        alone = _encoder_alone(keys)
        if alone is not None:
            if request.phase == "decode":
                raise UsageError(
                    f"{self.source}: {alone}, and an encoder of {model_type} "
                    "has no phase decode; give --phase prefill"
                )
            return [encoder]
        decoder = read_stack(
            keys, row.decoder, decoder_run, warnings=self.warnings, crosses_everywhere=True
        )
        return [decoder] if self._encoder_ran() else [encoder, decoder]

    def _encoder_ran(self) -> bool:
        if self.request.phase != "decode":
            return False
        self.warnings.append("phase decode: the encoder ran in prefill and is left out")
        return True

    def _composite(self, keys: Keys) -> list[Stack]:
        """Read a file that joins two models under ``encoder`` and ``decoder``."""
        parts = {name: keys.nested(name) for name in ("encoder", "decoder")}
        for name, part in parts.items():
            if part is None:
                keys.fault(name, "is missing; expected the config of a model")
        self._refuse(keys)
        encoder, decoder = parts["encoder"], parts["decoder"]
        assert encoder is not None
        assert decoder is not None
        rows = [self._row(part, part.word("model_type") or "") for part in (encoder, decoder)]
        encoder, decoder = (
            row.completed(part, self.warnings)
            for row, part in zip(rows, (encoder, decoder), strict=True)
        )
        families = [row.family for row in rows]
        source = self.request.kv_tokens or rows[0].tokens(encoder) or self.request.tokens
        run = Run(tokens=source, batch=self.request.batch, phase="prefill")
        first = read_stack(encoder, families[0], run, warnings=self.warnings, prefix="encoder ")
        run = Run(
            tokens=self.request.tokens,
            batch=self.request.batch,
            phase=self.request.phase,
            source_tokens=source,
        )
        second = read_stack(
            decoder,
            replace(families[1], causal=True),
            run,
            warnings=self.warnings,
            crosses_everywhere=True,
        )
        return [second] if self._encoder_ran() else [first, second]

    def kinds(self, stacks: Sequence[Stack]) -> tuple[LayerKind, ...]:
        """Build the specs, one for each distinct draft."""
        grouped: dict[tuple[object, ...], list[Draft]] = {}
        for stack in stacks:
            for draft in stack.drafts:
                grouped.setdefault(draft.identity, []).append(draft)
        try:
            kinds = [
                LayerKind(
                    name=drafts[0].name,
                    spec=AttentionSpec(**dict(drafts[0].spec)),
                    stored=AttentionSpec(**dict(drafts[0].stored)),
                    indices=tuple(sorted(index for draft in drafts for index in draft.indices)),
                    cached=drafts[0].cached,
                    norm_biases=drafts[0].norm_biases,
                    params_beside=drafts[0].params_beside,
                    v_is_k=drafts[0].v_is_k,
                    built=drafts[0].built,
                )
                for drafts in grouped.values()
            ]
        except SpecError as error:
            raise UsageError(f"{self.source}: {error}") from error
        if any(kind.v_is_k for kind in kinds):
            self.warnings.append(
                "keys are the values too in layers that do not slide: what they lack is not in "
                "this count, and in what flops and latency run"
            )
        return distinguish(kinds)


def _encoder_alone(keys: Keys) -> str | None:
    """Return what says that the decoder of an encoder-decoder is not built; None if nothing."""
    if keys.values.get("is_encoder_decoder") is False:
        return "is_encoder_decoder: false"
    built = [str(each) for each in architectures(keys)]
    if built and all(name.endswith(("EncoderModel", "ForTokenClassification")) for name in built):
        return f"architectures: {', '.join(built)}"
    return None
