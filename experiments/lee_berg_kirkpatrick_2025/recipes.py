"""The protocol of the paper's table 5, the models that its tables compare, and our teachers.

Deviations that all experiments share: 100M tokens of `web` instead of 500M of SlimPajama; the
gradient's norm is clipped at 1, as in the released code; the paper does not say how wide its
embeddings are (ours 256) nor how anything starts (embeddings N(0, 0.2^2) or N(0, 0.3^2), those that
a transformer reads N(0, 1), free logits N(0, 1)). All models start at the frequencies of words:
products have a number for each word that they add to. Without it networks that all states share
make them alike while they learn the frequencies, and are still there after 10M tokens (LOG.md).
Every line of the text ends with the tokenizer's end token, which the released code does not have;
in SmolLM2's tokens 80M.
"""

from experiments.rows import Row, Taught, Teacher

SEEDS = (42, 52, 62)
ROWS, LENGTH = 200, 64
FULL, PART, SHORT = 100_000_000, 25_000_000, 10_000_000
WINDOW = f"window {LENGTH}"
MOST = {"web-smollm2": 80_000_000}
"""SmolLM2's tokens are longer: the same text has fewer of them."""

_LOWRANK = ("model.width=256",)
_MLP = ("model.width=256", "model.destination=true", "model.start=linear")
_TRF = ("model.width=256", "model.depth=4", "model.scale=1.0")

Model = tuple[str, tuple[str, ...]]
"""A kind, and its settings."""

MODELS: dict[str, Model] = {
    "HMM": ("scalar", ()),
    "Ablation A (single H)": ("lowrank", (*_LOWRANK, "model.shared=true")),
    "Ablation B (split H)": ("lowrank", _LOWRANK),
    "Chiu and Rush": ("mlp", _MLP),
    "a": ("lowrank", (*_LOWRANK, "model.factor_emit=false", "model.factor_init=false")),
    "a, pi": ("lowrank", (*_LOWRANK, "model.factor_emit=false")),
    "b": ("lowrank", (*_LOWRANK, "model.factor_trans=false", "model.factor_init=false")),
    "a, b": ("lowrank", (*_LOWRANK, "model.factor_init=false")),
    "MLP, monolithic": ("mlp", (*_MLP, "model.monolithic=true")),
    "TRF": ("transformer", (*_TRF, "model.monolithic=false")),
    "TRF, monolithic": ("transformer", _TRF),
    "SmolLM2": ("pretrained", ()),
    "SmolLM2, random": ("pretrained", ("model.random=true",)),
}


def network(*, split: bool, monolithic: bool, layers: int, skip: bool, relu: bool, norm: bool):
    """A variant of Chiu & Rush's network, as table 3 names them."""
    parts = {
        "split": split,
        "monolithic": monolithic,
        "skip": skip,
        "relu": relu,
        "layer_norm": norm,
    }
    settings = [f"model.{name}={str(value).lower()}" for name, value in parts.items()]
    return "mlp", (*_MLP, f"model.layers={layers}", *settings)


CHOSEN: dict[str, float] = {
    "Ablation A (single H)": 0.03,
    "HMM": 0.4,
    "Ablation B (split H)": 0.03,
    "Chiu and Rush": 0.03,
    "a": 0.03,
    "b": 0.03,
    "a, pi": 0.1,
    "a, b": 0.03,
    "MLP, monolithic": 0.0003,
    "TRF": 0.003,
    "TRF, monolithic": 0.0003,
    "1 layer, relu": 0.01,
    "1 layer, split, relu": 0.01,
    "2 layers, skip, relu": 0.003,
    "2 layers, split, norm": 0.03,
    "2 layers, split, skip, relu": 0.003,
    "2 layers, split, monolithic, skip, relu": 0.003,
    "1 layer": 0.003,
}
"""The learning rates that were best on validation with 10M tokens (`rates`), but for SmolLM2."""

USUAL = {"scalar": 0.1, "lowrank": 0.03, "mlp": 0.01, "transformer": 0.003, "pretrained": 3e-4}
"""By kind, where none was chosen."""


def train(
    name: str,
    model: Model,
    *,
    like: str = "",
    states: int = 512,
    tokens: int = FULL,
    seeds: tuple[int, ...] = SEEDS,
    rate: float | None = None,
    dataset: str = "web",
    taught: Taught | None = None,
    layers: Teacher | None = None,
    settings: tuple[str, ...] = (),
    paper: float | None = None,
) -> tuple[Row, ...]:
    """The rows of a model, one for each seed; its rate is that chosen for `like`, or for itself."""
    kind, own = model
    tokens = min(tokens, MOST.get(dataset, tokens))
    rate = CHOSEN.get(like or name, USUAL[kind]) if rate is None else rate
    steps = tokens // (ROWS * LENGTH)
    protocol = (
        "data.layout=windows",
        "data.reset=false",
        f"data.batch_size={ROWS}",
        f"data.length={LENGTH}",
        f"data.tokens={tokens}",
        f"train.learning_rate={rate}",
        "train.beta2=0.95",
        "train.weight_decay=0.1",
        "train.clip=1.0",
        f"train.warmup_steps={steps // 20}",
        "train.final_rate=0.1",
        "train.dropout=0.0",
        "train.precision=bf16",
    )
    return tuple(
        Row(
            name,
            dataset,
            kind,
            states=states,
            blocks=0,
            settings=(*own, *protocol, *settings),
            mode=WINDOW,
            modes=(WINDOW,),
            taught=taught,
            layers=layers,
            seed=seed,
            epochs=1,
            paper_test=paper,
        )
        for seed in seeds
    )


def decoder(tokens: int) -> Teacher:
    """A transformer of ours that has read so many tokens of the text."""
    return Teacher(
        f"decoder, {tokens // 1_000_000}M tokens",
        (
            f"data.tokens={tokens}",
            "data.batch_size=200",
            "train.epochs=1",
            "train.precision=bf16",
            f"train.warmup_steps={tokens // 256_000}",
            "model.dropout=0.0",
            "data.validation=window 64",
        ),
    )


OURS = decoder(FULL)
RANDOM = Teacher("decoder, random", decoder(1_000_000).settings, options=("distill.random=true",))
SMOLLM2 = Teacher(
    "SmolLM2-135M",
    folder="smollm2",
    options=("distill.dtype=bfloat16", 'distill.gguf_file="SmolLM2-135M-Instruct.Q4_1.gguf"'),
)
SMOLLM2_RANDOM = Teacher(
    "SmolLM2-135M, random", folder="smollm2", options=(*SMOLLM2.options, "distill.random=true")
)


def lvd(teacher: Teacher = OURS, *, tokens: int = SHORT, dim: int = 0) -> Taught:
    """The states of the first tokens; clusters are found with the first 2M, once for all seeds."""
    wanted = (f"distill.tokens={tokens}", "distill.iterations=20", "distill.batch_size=1024")
    return Taught(teacher, (*wanted, f"distill.dim={dim}") if dim else wanted)
