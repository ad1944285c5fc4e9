"""HMMs in lm-eval: python -m hmmlm.hf.harness run --model hmm --model_args pretrained=FOLDER ..."""

from collections.abc import Iterator, Sequence
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


@register_model("hmm")
class HmmHarness(LM):
    """A model's folder; every text is read from a cold start, and the first token scored too."""

    def __init__(self, pretrained: str, device: str = "cpu", batch_size: int | str = 16) -> None:
        super().__init__()
        if not torch.cuda.is_available():
            device = "cpu"  # lm-eval asks for a GPU unless it is told otherwise
        self.model = Model.load(pretrained, device=device)
        self.lm: Any = HmmForCausalLM.from_model(self.model)
        self.lm.to(device)
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
        for some, logits in self._read([before + after for before, after in pairs]):
            for row, number in zip(logits, some, strict=True):
                before, after = pairs[number]
                given = row[len(before) : len(before) + len(after)]
                ids = torch.tensor(after, device=given.device, dtype=torch.long)
                scores = given.gather(1, ids[:, None])[:, 0].double()
                found.append((float(scores.sum()), bool((given.argmax(1) == ids).all())))
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
        until = how.get("until") or []
        until = [until] if isinstance(until, str) else list(until)
        ids = self.model.tokenizer.encode(context)
        start = torch.tensor([ids or [self.eos]], device=self.model.device)
        drawn = {"do_sample": bool(how.get("do_sample", False))}
        if drawn["do_sample"]:
            drawn |= {"temperature": float(how.get("temperature", 1.0)), "top_k": 0}
        out = self.lm.generate(
            start,
            attention_mask=torch.ones_like(start),
            max_new_tokens=int(how.get("max_gen_toks", LONGEST)),
            eos_token_id=self.eos,
            pad_token_id=self.eos,
            **drawn,
        )
        new = out[0, start.shape[1] :].tolist()
        new = new[: new.index(self.eos)] if self.eos in new else new
        text = self.model.tokenizer.decode(new)
        for word in until:
            text = text.partition(word)[0] if word else text
        return text

    def _split(self, context: str, continuation: str) -> tuple[list[int], list[int]]:
        """The ids of both, cut where the context ends; spaces at its end are the continuation's."""
        kept = context.rstrip()
        encode = self.model.tokenizer.encode
        whole, before = encode(context + continuation), encode(kept)
        return whole[: len(before)], whole[len(before) :]

    def _read(self, texts: Sequence[list[int]]) -> Iterator[tuple[list[int], list[torch.Tensor]]]:
        """Numbers of texts, and log p of each token that may stand at each place of theirs."""
        first = inference.next_log_probs(inference.start(self.model.hmm))  # (1, V)
        for begin in range(0, len(texts), self.batch_size):
            numbers = list(range(begin, min(begin + self.batch_size, len(texts))))
            rows = [texts[number] for number in numbers]
            width = max(1, *map(len, rows))
            ids = torch.tensor([[*row, *[self.eos] * (width - len(row))] for row in rows])
            mask = torch.arange(width) < torch.tensor([max(1, len(row)) for row in rows])[:, None]
            place = self.model.device
            with torch.no_grad():
                logits = self.lm(ids.to(place), attention_mask=mask.to(place)).logits
            yield numbers, [torch.cat([first, row]) for row in logits]


if __name__ == "__main__":
    from lm_eval.__main__ import cli_evaluate

    cli_evaluate()
