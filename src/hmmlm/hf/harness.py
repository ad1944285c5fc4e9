"""HMMs in lm-eval: python -m hmmlm.hf.harness run --model hmm --model_args pretrained=FOLDER ..."""

import sys
from collections.abc import Sequence
from typing import Any

import torch
from lm_eval.api.model import LM
from lm_eval.api.registry import register_model

from hmmlm import inference
from hmmlm.errors import InputError
from hmmlm.hf.causal_lm import HmmForCausalLM
from hmmlm.model import Model

LONGEST = 256
"""New tokens of an answer, where a task does not say how many."""

SIZES = ("max_gen_toks", "max_new_tokens", "max_tokens", "max_completion_tokens")
"""What tasks call that."""


@register_model("hmm")
class HmmHarness(LM):
    """A model's folder; every text is read from a cold start, and the first token scored too."""

    def __init__(
        self, pretrained: str, device: str | None = None, batch_size: int | str = 16, **others: Any
    ) -> None:
        super().__init__()
        if others:
            raise InputError(
                f"model_args has {', '.join(sorted(others))}, but an HMM takes pretrained, device "
                f"and batch_size alone; leave out the rest."
            )
        self.model = Model.load(pretrained, device="auto" if device is None else device)
        self.lm: Any = HmmForCausalLM.from_model(self.model)
        self.lm.to(self.model.device)
        if not str(batch_size).isdigit() or int(batch_size) < 1:
            raise InputError(f"batch_size is {batch_size} but must be a number from 1 up.")
        self.batch_size = int(batch_size)

    @property
    def eos(self) -> int:
        return self.model.tokenizer.eos_id

    def loglikelihood(self, requests: Sequence[Any]) -> list[tuple[float, bool]]:
        """log p(continuation | context) of each pair, and whether its tokens are all the best."""
        pairs = [self._split(*request.args) for request in requests]
        found: list[tuple[float, bool]] = []
        for begin in range(0, len(pairs), self.batch_size):
            found += self._score(pairs[begin : begin + self.batch_size])
        return found

    def loglikelihood_rolling(self, requests: Sequence[Any]) -> list[float]:
        """log p of whole texts, each alone, `<eos>` not counted."""
        texts = [self.model.tokenizer.encode(request.args[0]) for request in requests]
        found = []
        for ids in texts:
            if not ids:
                found.append(0.0)
                continue
            tokens = torch.tensor([ids], device=self.model.device)
            read = inference.log_prob(self.model.hmm, tokens, reset_id=self.eos)
            found.append(float(read.log_evidence))
        return found

    def generate_until(self, requests: Sequence[Any]) -> list[str]:
        """Texts after a context, up to the first of the words that end one, or `<eos>`."""
        return [self._write(*request.args) for request in requests]

    def _write(self, context: str, how: dict[str, Any]) -> str:
        how = {name: value for name, value in how.items() if value is not None}
        until, sizes = how.pop("until", []), [how.pop(name, None) for name in SIZES]
        size = next((size for size in sizes if size is not None), LONGEST)
        draws = bool(how.pop("do_sample", how.get("temperature", 0) > 0))
        temperature = float(how.pop("temperature", 1.0))
        if draws and temperature > 0:
            how = {"do_sample": True, "top_k": 0, "temperature": temperature, **how}
        else:
            how = {name: value for name, value in how.items() if name not in ("top_k", "top_p")}
            how["do_sample"] = False
        ids = self.model.tokenizer.encode(context)
        start = torch.tensor([ids or [self.eos]], device=self.model.device)
        out = self.lm.generate(
            start,
            attention_mask=torch.ones_like(start),
            max_new_tokens=int(size),
            eos_token_id=self.eos,
            pad_token_id=self.eos,
            **how,
        )
        new = out[0, start.shape[1] :].tolist()
        new = new[: new.index(self.eos)] if self.eos in new else new
        text = self.model.tokenizer.decode(new)
        for word in [until] if isinstance(until, str) else until:
            text = text.partition(word)[0] if word else text
        return text

    def _split(self, context: str, continuation: str) -> tuple[list[int], list[int]]:
        """The ids of both, cut where the context ends; spaces at its end are the continuation's."""
        kept = context.rstrip()
        encode = self.model.tokenizer.encode
        whole, before = encode(context + continuation), encode(kept)
        return whole[: len(before)], whole[len(before) :]

    @torch.no_grad()
    def _score(self, pairs: Sequence[tuple[list[int], list[int]]]) -> list[tuple[float, bool]]:
        """Of one batch; -inf where a text cannot be. Logits are of what continues alone."""
        rows = [[self.eos, *before, *after[:-1]] for before, after in pairs]  # <eos>: a cold start
        width, keep = max(map(len, rows)), max(1, *(len(after) for _, after in pairs))
        ids = torch.tensor([[self.eos] * (width - len(row)) + row for row in rows])
        mask = torch.arange(width) >= width - torch.tensor([len(row) for row in rows])[:, None]
        place = self.model.device
        logits = self.lm(
            ids.to(place), attention_mask=mask.to(place), logits_to_keep=keep, may_have_ended=True
        ).logits
        found = []
        for given, (_, after) in zip(logits.cpu(), pairs, strict=True):
            tokens = torch.tensor(after, dtype=torch.long)
            given = given[keep - len(after) :]
            scores = given.gather(1, tokens[:, None])[:, 0].double()
            found.append((float(scores.sum()), bool((given.argmax(1) == tokens).all())))
        return found


def main() -> None:
    """lm-eval's own command, to which HMMs are known; a mistake is one line and status 2."""
    from lm_eval.__main__ import cli_evaluate

    try:
        cli_evaluate()
    except InputError as error:
        print(f"hmmlm: {error}", file=sys.stderr)
        sys.exit(2)


if __name__ == "__main__":
    main()
