"""How the HMMs of the tables are trained, as the released code does and better, and networks."""

FAITHFUL = (
    "model.scale=1.0",
    "model.cluster_by=brown",
    "model.like_hmm_lm=true",
    "data.layout=streams",
    "data.batch_size=16",
    "data.length=32",
    "data.reset=true",
    "data.reset_at_ends=false",
    "data.shuffle=true",
    "data.validation=streaming",
    "train.dropout=0.5",
    "train.learning_rate=0.01",
    "train.weight_decay=0.0",
    "train.warmup_steps=0",
    "train.clip=5.0",
    "train.schedule=plateau",
    "train.plateau_factor=4",
    "train.plateau_patience=4",
    "train.checks=4",
    "train.precision=bf16",
)
"""The released code: streams of 16 x 32 of shuffled sentences, belief carried, embeddings N(0, 1),
a quarter of the rate on a plateau."""

_PACKED = (
    "model.scale=0.2",
    "model.cluster_by=brown",
    "data.layout=packed",
    "train.schedule=cosine",
    "train.checks=2",
    "train.precision=bf16",
)

PTB_ROWS = ("data.batch_size=8", "data.length=64")
"""512 tokens a step; one sentence in 1,000 is longer than 64."""

WIKITEXT_ROWS = ("data.batch_size=1", "data.length=512")
"""512 tokens a step; a line of WikiText is a paragraph: nine of 36,718 are longer than 512."""

PACKED = (*_PACKED, "train.dropout=0.3", "train.learning_rate=0.005", "train.weight_decay=0.02")
"""Whole sentences in rows, a small start, less dropout, cosine, decay."""

ABLATION = (
    *_PACKED,
    *PTB_ROWS,
    "model.like_hmm_lm=true",
    "train.learning_rate=0.01",
    "train.weight_decay=0.0",
)
"""The same with the paper's learning rate, decay and blocks, for tables that change one thing."""

HALF = "train.dropout=0.5"
"""The paper's state dropout."""

FAST = ("train.precision=tf32",)
SIDE_BY_SIDE = (*FAST, "data.validation=window 2048")
"""A stream is read a token at a time: validation in stretches, the last word is a stream."""

AWD = (*SIDE_BY_SIDE, "train.optimiser=adamw", "data.vary_length=false", "model.width=1152")
"""Of one length, so that a step is one CUDA graph; 1,152 is the multiple of 16 next to 1,150."""

AWD_PTB = (*AWD, "data.batch_size=40")
