"""Steer a Hugging Face language model: every text it writes has the words it is asked for.

A language model writes one token after the other and cannot know whether a word that is asked for
will still come. An HMM that has learnt the language model's own texts can: at every token it says
what that token does to p(the constraint is met). This script makes a tiny GPT-2 of made-up village
news, an HMM of what that writes, and lets it write with and without help. It prints how many texts
have the words, and how probable they are to the language model: being told what is allowed (mask)
is enough to have the words somewhere, looking ahead (guided) is what makes them fit in.

A real one: `hmmlm distill --llm FOLDER --out GUIDE` makes the HMM (on a GPU; docs/distilling.md);
then set LLM and GUIDE to these folders. The rest of the script stays as it is.

    pip install '.[hf]'; python examples/steer_an_llm.py
"""

import random

import torch
from transformers import AutoModelForCausalLM, GPT2Config, GPT2LMHeadModel

from hmmlm import Model
from hmmlm.data.tokenizer import Tokenizer
from hmmlm.fitting import fit
from hmmlm.generate import Guide, contains
from hmmlm.hf.guiding import GuidedLogits

LLM, GUIDE = "", ""  # folders of a real language model and of its guide
PROMPT = "my sister"
WANTED = contains("umbrella", "rain", "baker")
LENGTH, COUNT = 20, 40

NEWS = {  # what the tiny language model learns to write; a real one knows more
    "WHO": "the old farmer/a girl/my sister/the teacher/a sailor/the baker/our dog/the doctor",
    "DID": "took/saw/lost/found/wanted/bought/forgot",
    "WHAT": "an umbrella/a red ball/the boat/some bread/a letter/the key/an old book/her coat",
    "WHERE": "in the garden/at the harbour/near the school/on the road/by the river/in the kitchen",
    "WHEN": "before dinner/in the morning/after the storm/last night/because of the rain/at noon",
}
ORDERS = (
    "WHO DID WHAT WHERE .",
    "WHO DID WHAT WHEN .",
    "WHEN WHO DID WHAT and WHO DID WHAT .",
    "WHO DID WHAT WHERE , but WHO DID WHAT WHEN .",
)


def make_news(count: int) -> list[str]:
    """Made-up sentences."""
    draw = random.Random(0)
    parts = {name: phrases.split("/") for name, phrases in NEWS.items()}
    orders = [draw.choice(ORDERS).split() for _ in range(count)]
    return [" ".join(draw.choice(parts.get(word, [word])) for word in order) for order in orders]


def make_llm(lines: list[str], words: Tokenizer) -> GPT2LMHeadModel:
    """A small GPT-2 of words, trained on lines for some seconds; each begins after <eos>."""
    torch.manual_seed(0)
    eos = words.eos_id
    llm = GPT2LMHeadModel(
        GPT2Config(vocab_size=words.vocab_size, n_embd=64, n_layer=2, n_head=4, n_positions=64,
                   bos_token_id=eos, eos_token_id=eos)
    )  # fmt: skip
    rows = [torch.tensor([eos, *ids][:40]) for ids in words.encode_lines(lines)]
    rows.sort(key=len)  # rows of a batch are of about one length
    batches = [rows[at : at + 48] for at in range(0, len(rows), 48)]
    adam = torch.optim.AdamW(llm.parameters(), lr=3e-3, weight_decay=0.1)
    for _ in range(6):
        for number in torch.randperm(len(batches)).tolist():
            ids = torch.nn.utils.rnn.pad_sequence(batches[number], True, padding_value=-100)
            logits = llm(ids.clamp(min=0)).logits[:, :-1]
            loss = torch.nn.functional.cross_entropy(logits.transpose(1, 2), ids[:, 1:])
            loss.backward()
            adam.step()
            adam.zero_grad()
    return llm.eval()


def write(llm, words: Tokenizer, count: int, prompt: str = "", guide: Guide | None = None):
    """Ids that the language model writes after the prompt, guided or not."""
    start = torch.tensor([[words.eos_id, *words.encode(prompt)]])
    drawn = llm.generate(
        start,
        attention_mask=torch.ones_like(start),
        do_sample=True,
        top_k=0,
        num_return_sequences=count,
        max_new_tokens=LENGTH,
        pad_token_id=words.eos_id,
        logits_processor=[] if guide is None else [GuidedLogits(guide, pad_id=words.eos_id)],
    )
    return drawn[:, 1:]


@torch.no_grad()
def nats_per_token(llm, words: Tokenizer, rows: torch.Tensor) -> float:
    """-log p of the texts to the language model itself, up to the first <eos>."""
    inputs = torch.cat([torch.full((len(rows), 1), words.eos_id), rows], 1)
    log_probs = llm(inputs).logits[:, :-1].log_softmax(-1)
    found = log_probs.gather(2, rows[:, :, None])[:, :, 0]
    over = (rows == words.eos_id).cumsum(1) - (rows == words.eos_id).long() > 0
    return float(-found[~over].mean())


torch.manual_seed(1)
if LLM:
    llm, model = AutoModelForCausalLM.from_pretrained(LLM).eval(), Model.load(GUIDE)
    words = model.tokenizer
else:
    lines = make_news(2000)
    words = Tokenizer.words(lines)
    llm = make_llm(lines, words)
    own = [words.decode(row) for _ in range(2) for row in write(llm, words, 800).tolist()]
    own = [text.split("\n")[0] for text in own]  # what comes after <eos> is padding
    print(f"The language model wrote {len(own):,} texts for its guide to learn, such as")
    print(*(f"   {text}" for text in own[:3]), sep="\n")
    model = fit(own, tokenizer=words, model={"states": 512, "blocks": 16}, train={"epochs": 10})

look = model.look_ahead(WANTED, length=LENGTH)
guides = {"free": None, "mask": Guide([look], strength=0.0), "guided": Guide([look])}
met = model.probability(look, prompt=PROMPT, length=LENGTH)
print(f"\n{WANTED}, within {LENGTH} tokens after '{PROMPT}': by the HMM p = {met:.1e}\n")
for name, guide in guides.items():
    rows = write(llm, words, COUNT, PROMPT, guide)
    texts = [words.decode(row).split("\n")[0] for row in rows.tolist()]
    having = sum(WANTED.accepts(text) for text in texts)
    nats = nats_per_token(llm, words, rows)
    print(f"{name:>6}: {having} of {COUNT} have the words; {nats:.2f} nats per token to the LLM")
    print(*(f"        {text}" for text in texts[:3]), sep="\n")
