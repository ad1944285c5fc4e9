"""`hmmlm train` from configurations and plain text, and `hmmlm estimate`."""

import json
import re
import time
from pathlib import Path

import pytest
import torch

from commands import BASE, made_up_lines, tree
from hmmlm import Model
from hmmlm.data.shards import Corpus
from hmmlm.train.config import make_config

FEW = ["--epochs=1", "--batch-size=4", "--length=64"]


def last_json(out: str) -> dict:
    return json.loads(out.splitlines()[-1])


def training(folder: str) -> dict:
    return json.loads((Path(folder) / "config.json").read_text())["training"]


def test_train_from_a_file_with_changes(place, call):
    Path("run.toml").write_text(
        '[data]\ncorpus = "corpus"\nlength = 32\n[model]\nkind = "mlp"\nwidth = 8\nstates = 12\n'
        "blocks = 4\n[train]\nepochs = 2\n"
    )
    answer = call("train", "run.toml", "--set=train.epochs=1", "--seed=3", "--out=new", "--json")
    assert answer.status == 0, answer.err
    said = last_json(answer.out)
    assert said["steps"] > 0 and said["peak_bytes"] is None  # which is that of a GPU
    kept = training("new")
    assert kept["model"]["kind"] == "mlp" and kept["model"]["width"] == 8
    assert kept["train"]["epochs"] == 1 and kept["train"]["seed"] == 3
    config = make_config({name: kept[name] for name in ("data", "model", "train")})
    assert config.data.length == 32 and config.model.blocks == 4
    hmm = Model.load("new").hmm
    assert hmm.num_states == 12 and hmm.support.rows.shape == (4, 3)


@pytest.mark.parametrize("kind", ["scalar", "lowrank", "mlp", "transformer"])
@pytest.mark.parametrize("layout", ["packed", "streams", "windows"])
def test_every_kind_and_layout_trains(place, call, kind, layout):
    answer = call(
        "train", "corpus", "--kind", kind, "--set", f"data.layout={layout}", "--states=12",
        "--blocks=4", "--out=new", *FEW,
    )  # fmt: skip
    assert answer.status == 0, answer.err
    found = last_json(call("evaluate", "new", "corpus", "--split=test", "--json").out)
    assert 1 < found["perplexity"] < 20 and found["max_row_error"] < 1e-4


def test_frequent_blocks_have_more_states(place, call):
    settings = ["--set=model.uneven=0.7", "--states=30", "--blocks=4", "--dropout=0.5"]
    answer = call("train", "corpus", *settings, "--out=new", *FEW)
    assert answer.status == 0, answer.err
    model = Model.load("new")
    support, corpus = model.hmm.support, Corpus.open("corpus")
    sizes = (support.rows >= 0).sum(1)
    tokens = torch.from_numpy(corpus.split("train")[0:])
    counts = torch.bincount(support.row_of_word[tokens], minlength=4)
    order = counts.argsort()
    assert sizes.sum() == 30 and support.is_partition and len(sizes) == 4
    assert (sizes[order].diff() >= -1).all() and sizes.max() > sizes.min() + 2
    assert f"blocks have {int(sizes.min())} to {int(sizes.max())} states" in answer.out
    assert model.config["training"]["model"]["uneven"] == 0.7
    found = last_json(call("evaluate", "new", "corpus", "--split=test", "--json").out)
    assert 1 < found["perplexity"] < 20 and found["max_row_error"] < 1e-4
    answer = call("estimate", "--no-measure", *settings[:3], "--vocab=200")
    most = re.search(r"lowrank, 30 states in 4 blocks, (\d+) at most, ", answer.out)
    assert answer.status == 0 and most is not None and 8 < int(most[1]) <= 15


def test_states_by_chance_instead_of_blocks(place, call):
    settings = ["--set=model.states_per_word=3", "--set=model.kind=mlp", "--set=model.width=8"]
    answer = call("train", "corpus", "--states=12", "--dropout=0.5", *settings, "--out=new", *FEW)
    assert answer.status == 0, answer.err
    support = Model.load("new").hmm.support
    assert support.rows.shape == (support.vocab_size, 3) and not support.is_partition
    parameters = re.search(r"([\d,]+) parameters", answer.out)
    estimated = call(
        "estimate",
        "--no-measure",
        "--set=model.states=12",
        *settings,
        f"--vocab={len(support.rows)}",
    )
    assert parameters is not None and f"{parameters[1]} parameters" in estimated.out


def test_train_from_plain_text_chooses_sizes(place, call):
    Path("many.txt").write_text("".join(f"{line}\n" for line in made_up_lines(400, seed=7)))
    answer = call("train", "--text=many.txt", *FEW, "--json")
    assert answer.status == 0, answer.err
    assert "tokens to train on, " in answer.out and " held out, " in answer.out
    assert "128 states, chosen for 3,040 tokens;" in answer.out
    result = last_json(answer.out)
    assert result["folder"] == "runs/many" and result["val"] > 1
    assert Model.load("runs/many").hmm.num_states == 128
    again = call("train", "--text=many.txt", *FEW, "--json")
    assert last_json(again.out)["folder"] == "runs/many-2"


def test_the_size_line_says_why_there_are_no_blocks(place, call):
    answer = call("train", "corpus", "--states=8", "--out=new", *FEW)
    assert "8 states, without blocks: the text has 13 words, and blocks are for" in answer.out


def test_a_text_in_one_line_is_told(place, call):
    Path("long.txt").write_text(" ".join(made_up_lines(200, seed=7)) + "\n")
    said = "has 1 line of 1,400 words; a line is a sentence: nothing could be held out"
    end = "Split the text into sentences, 40 of them or more.\n"
    answer = call("train", "--text=long.txt", *FEW)
    assert answer.err == f"hmmlm: long.txt {said}, and rows of 64 tokens cut it. {end}"
    answer = call("train", "--text=long.txt", *FEW, "--length=1401")
    assert answer.err == f"hmmlm: long.txt {said}. {end}"
    two = "\n".join([" ".join(made_up_lines(100, seed=7))] * 2)
    Path("two.txt").write_text(two)
    answer = call("train", "--text=two.txt", *FEW)
    assert "two.txt has 2 lines of 1,400 words; " in answer.err
    assert "rows of 64 tokens cut longer ones. " in answer.err


def test_a_text_of_a_few_words_is_told(place, call):
    Path("ten.txt").write_text("a b c d e f g h i j\n")
    said = "hmmlm: ten.txt has 1 line of 10 words, which is too little to learn from; give some "
    assert call("train", "--text=ten.txt", *FEW).err == f"{said}thousands of words.\n"


def test_words_that_are_dropped_are_told(place, call):
    lines = [*made_up_lines(1100, seed=7), *(f"once{n} ." for n in range(20))]
    Path("many.txt").write_text("".join(f"{line}\n" for line in lines))
    answer = call("train", "--text=many.txt", *FEW)
    told = [line for line in answer.err.splitlines() if not line.startswith("step ")]
    assert told == []  # a slow machine tells of steps
    assert re.search(r"13 words; words that occur once are <unk>, 0\.2% of the text\n", answer.out)
    Path("fewer.txt").write_text("".join(f"{line}\n" for line in lines[-400:]))
    assert "<unk>" not in call("train", "--text=fewer.txt", *FEW).out.splitlines()[0]


def test_a_loss_that_is_not_finite_keeps_the_best_weights(place, call, monkeypatch):
    from hmmlm.train.loss import HmmLoss

    plain, calls = HmmLoss.__call__, []

    def breaks(self, batch, done):
        calls.append(1)
        return plain(self, batch, done) * (float("nan") if len(calls) == 8 else 1.0)

    monkeypatch.setattr(HmmLoss, "__call__", breaks)
    answer = call(
        "train", "corpus", "--states=8", "--blocks=0", "--out=new", "--epochs=3", *FEW[1:]
    )
    assert answer.status == 2
    assert "Training stopped at step 8 with learning rate" in answer.err
    assert "try a lower learning rate. The model was written to new." in answer.err
    stopped = Model.load("new").config["stopped"]
    assert stopped.startswith("Training stopped at step 8") and stopped.endswith("learning rate.")


def test_kernels_that_fail_are_told_once(place, call, monkeypatch):
    from hmmlm.ops.kernels import are_allowed
    from hmmlm.train.loss import HmmLoss

    plain = HmmLoss.__call__

    def breaks(self, batch, done):
        if are_allowed():
            raise RuntimeError("Failed to find C compiler.")
        return plain(self, batch, done)

    monkeypatch.setattr(HmmLoss, "__call__", breaks)
    monkeypatch.setattr("hmmlm.train.sgd.why_not", lambda device: None)
    answer = call("train", "corpus", "--states=8", "--blocks=0", "--out=new", *FEW[1:])
    assert answer.status == 0
    assert answer.err == (
        "hmmlm: Steps go on without kernels, slower, because they failed: RuntimeError: Failed to "
        "find C compiler.\n"
    )


def test_paths_of_a_file_are_those_of_the_current_folder(place, call, refused, monkeypatch):
    Path("runs.d").mkdir()
    Path("runs.d/one.toml").write_text('[data]\ncorpus = "corpus"\n[model]\nstates = 4\n')
    answer = call("train", "runs.d/one.toml", "--blocks=0", *FEW, "--out=new")
    assert answer.status == 0, answer.err
    Path("corpus").rename("runs.d/corpus")
    said = (
        "data.corpus is 'corpus', which is not in the current folder but beside runs.d/{}; paths "
        "are taken from the current folder, so start in runs.d, or write 'runs.d/corpus'."
    )
    assert refused("train", "runs.d/one.toml") == said.format("one.toml")
    Path("runs.d/many.toml").write_text(
        '[data]\ncorpus = "corpus"\n[sweep.grid]\ntrain.seed = [1]\n'
    )
    assert refused("sweep", "runs.d/many.toml") == said.format("many.toml")
    over = call("train", "runs.d/corpus", "--resume=x", "--states=4", *FEW)
    assert over.status == 2 and "x does not exist; give the folder of a training" in over.err


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--set=train.lr=1"], "There is no setting train.lr."),
        (["--set=train.epoch=1"], "Did you mean epochs?"),
        (["--set=epochs=1"], "'epochs=1' is not a setting; write table.key=value"),
        (["--set=train.epochs=many"], "train.epochs is 'many' but must be a whole number."),
        (["--states=10", "--blocks=4"], "10 states cannot be shared equally among 4 blocks; use 8"),
        (["--dropout=1"], "The state dropout is 1.0 but must be at least 0 and less than 1"),
    ],
)
def test_settings_that_are_refused(place, refused, options, message):
    before = tree(place)
    assert message in refused("train", "corpus", "--out=new", *options)
    assert tree(place) == before


EM = ["--kind=scalar", "--optimiser=em", "--batch-size=4", "--length=64"]


def test_baum_welch_on_the_command_line(place, call):
    answer = call("train", "corpus", "--states=12", "--blocks=4", *EM, "--out=new", "--epochs=4")
    assert answer.status == 0, answer.err
    lines = [json.loads(line) for line in Path("new/metrics.jsonl").read_text().splitlines()]
    losses = [line["loss"] for line in lines]
    assert len(losses) == 4 and losses == sorted(losses, reverse=True)
    assert training("new")["train"]["optimiser"] == "em"
    polish = ["--set=train.start=new", "--epochs=1", *EM]
    assert call("train", "corpus", *polish, "--out=more").status == 0
    again = json.loads(Path("more/metrics.jsonl").read_text().splitlines()[0])
    assert again["loss"] < losses[-1] and Model.load("more").hmm.support.rows.shape == (4, 3)
    assert training("more")["model"]["blocks"] == 4


def test_polishing_a_low_rank_model_as_tables(place, call):
    sizes = ["--states=12", "--blocks=4", *FEW]
    assert call("train", "corpus", *sizes, "--out=rough").status == 0
    before = last_json(call("evaluate", "rough", "corpus", "--split=train", "--json").out)
    polish = ["--set=train.start=rough", "--epochs=3", *EM, "--set=train.pseudocount=0"]
    assert call("train", "corpus", *polish, "--out=fine").status == 0
    after = json.loads(Path("fine/metrics.jsonl").read_text().splitlines()[-1])
    assert after["perplexity"] < before["perplexity"]
    assert call("train", "corpus", "--set=train.optimiser=gem", *sizes, "--out=gem").status == 0


def test_labels_on_the_command_line(place, call):
    tags = {"the": "D", "a": "D", ".": "P", "sees": "V", "likes": "V", "red": "A", "blue": "A"}

    def write(name: str, text: str) -> None:
        lines = Path(text).read_text().splitlines()
        marks = [" ".join(tags.get(word, "N") for word in line.split()) for line in lines]
        marks = [line if i % 5 == 0 else "_" + line[1:] for i, line in enumerate(marks)]
        Path(name).write_text("".join(line + "\n" for line in marks))

    write("labels.txt", "text.txt")
    options = [*EM, "--labels=labels.txt", "--epochs=3"]
    answer = call("train", "corpus", "--states=10", *options, "--out=new")
    assert answer.status == 0, answer.err
    kept = json.loads(Path("new/config.json").read_text())["labels"]
    assert kept == {"tags": ["A", "D", "N", "P", "V"], "states_per_tag": 2}
    tagged = Model.load("new").viterbi("the red dog sees a bird .")[0]
    assert [state // 2 for state in tagged.states[:-1]] == [1, 0, 2, 4, 1, 2, 3]
    assert tagged.tags is not None and tagged.tags[:-1] == ["D", "A", "N", "V", "D", "N", "P"]
    Path("one.txt").write_text("the red dog sees a bird .\n")
    said = call("tag", "new", "one.txt").out
    assert said.startswith("the/D red/A dog/N sees/V a/D bird/N ./P <eos>/")
    found = last_json(call("tag", "new", "one.txt", "--json").out)
    assert found == {"tokens": 8, "states": [tagged.states], "tags": [tagged.tags]}
    # Of plain text, every twentieth line is held out, and its labels with it.
    held = call("train", "--text=text.txt", "--states=10", *options, "--out=plain")
    assert held.status == 0, held.err


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--optimiser=em"], "em learns tables, so kind must be scalar, not lowrank; use optimis"),
        ([*EM, "--dropout=0.1"], "dropout is 0.1 but optimiser em counts on all states"),
        (["--labels=x.txt"], "labels needs expected counts; use optimiser em or gem"),
        ([*EM, "--labels=valid.txt", "--states=8"], "valid.txt ends after 30 lines but the text"),
        ([*EM, "--labels=text.txt", "--states=8"], "8 states cannot be shared equally among 11 t"),
        ([*EM, "--set=train.start=corpus"], "corpus"),
        ([*EM, "--set=train.start=model", "--states=5"], "states is 5 but model has 4"),
    ],
)
def test_em_that_is_refused(place, refused, options, message):
    assert message in refused("train", "corpus", "--out=new", *options)


def test_labels_that_blocks_rule_out(place, call):
    Path("labels.txt").write_text("D " * 7 + "\n" + "E " * 7 + "\n" + "_ " * 7 + "\n")
    Path("few.txt").write_text("".join(Path("text.txt").read_text().splitlines(True)[:3]))
    options = ["--text=few.txt", "--labels=labels.txt", "--states=8", "--blocks=4", "--out=new"]
    answer = call("train", *EM, *options)
    assert answer.status == 2 and not Path("new").exists()
    assert "but may come from none of its 4 states; use model.blocks=0, so that" in answer.err


def test_tables_too_large_to_start_from(place, refused, monkeypatch):
    from hmmlm.train import memory

    monkeypatch.setattr(memory, "free_memory", lambda device: 100)
    message = refused("train", "corpus", "--out=new", *EM, "--set=train.start=model")
    assert "Tables of 4 x 4 transitions and " in message and "are free; use fewer" in message


@pytest.mark.parametrize("states", [10**7, 10**9])
@pytest.mark.parametrize("kind", ["lowrank", "scalar"])
def test_a_training_far_beyond_the_memory_is_refused_at_once(refused, kind, states):
    began = time.perf_counter()
    sizes = [f"--kind={kind}", f"--states={states}", "--blocks=0"]
    message = refused("train", "corpus", "--out=new", *sizes)
    assert re.search(r"needs about [\d,.]+ [GT]B and [\d,.]+ [GT]B are free; use fewer", message)
    assert time.perf_counter() - began < 5


@pytest.mark.parametrize("kind", ["lstm", "awd_lstm", "decoder", "feed_forward", "hmm_rnn"])
def test_a_network_far_beyond_the_memory_is_refused_at_once(refused, kind):
    began = time.perf_counter()
    message = refused(
        "train", "corpus", "--out=new", f"--model={kind}", "--set=model.width=4000000"
    )
    assert re.search(
        r"needs about [\d,.]+ [A-Z]B and [\d,.]+ [GT]B are free; use a smaller model", message
    )
    assert time.perf_counter() - began < 5


def test_estimate(place, call):
    options = ["--set=model.kind=mlp", "--set=model.states=32768", "--set=model.blocks=128"]
    answer = call("estimate", "--no-measure", *options, "--vocab=10000", "--json")
    assert answer.status == 0, answer.err
    result = last_json(answer.out)
    assert result["parameters"] == 11_355_153
    assert result["bytes"] == sum(result["memory"].values())
    assert "11,355,153 parameters" in answer.out and "in all" in answer.out
    assert "1,024 tokens a step" in answer.out


def test_estimate_of_a_step_that_is_an_epoch(call):
    answer = call("estimate", "--no-measure", "--set=model.kind=scalar", "--set=train.optimiser=em")
    assert answer.status == 0 and "1,024 tokens a batch" in answer.out


@pytest.mark.parametrize(("options", "blocks"), [([], 6), (["--set=model.like_hmm_lm=true"], 5)])
def test_estimate_with_a_file_of_clusters_is_that_of_training(place, call, options, blocks):
    call("cluster", "--text=text.txt", "--clusters=5", "--out=paths")
    sizes = ["--set=model.states=60", "--set=train.epochs=1", *options]
    given = [*sizes, "--set=model.clusters=paths"]
    vocab = f"--vocab={Model.load('model').tokenizer.vocab_size}"
    estimated = call("estimate", "--no-measure", *given, vocab)
    assert estimated.status == 0, estimated.err
    assert f"60 states in {blocks} blocks, " in estimated.out
    answer = call("train", "corpus", "--out=new", *given)
    assert answer.status == 0 and f"{blocks} blocks (paths)" in answer.out
    parameters = re.search(r"[\d,]+ parameters", estimated.out)
    assert parameters is not None and parameters[0] in answer.out
    few = call("estimate", "--no-measure", *given, "--set=model.states=64")
    assert f"64 states cannot be shared equally among {blocks} blocks" in few.err


SHAPE = ["--states=16", "--blocks=4", "--vocab=30", "--batch=2", "--length=8"]


def test_estimate_measures(call):
    answer = call("estimate", *SHAPE, "--seconds=0.2", "--device=cpu", "--json")
    assert answer.status == 0, answer.err
    result = last_json(answer.out)
    assert result["tokens"] == 16 and result["device"] == "cpu"
    assert list(result["measured"]) == ["training", "scoring", "guiding"]
    for found in result["measured"].values():
        assert found["tokens_per_second"] > 0 and found["bytes"] > 0 and found["fits"]
    assert "lowrank, 16 states in 4 blocks" in answer.out and answer.out.count(" tokens/s ") == 3


def test_estimate_of_what_does_not_fit(call, monkeypatch):
    from hmmlm import calibration

    found = {"automaton_states": 32, "budget": 32, "prepare_seconds": 1.0}
    large = calibration.Measured(
        "training", 5.0, 9 * 10**9, 10**9, 64, 32, True, "memory", 10**9, found
    )
    monkeypatch.setattr(calibration, "measure_apart", lambda task: large._replace(part=task.part))
    answer = call("estimate", *SHAPE)
    assert answer.status == 0
    assert "extrapolated from 32 and 64 states for want of memory" in answer.out
    assert "scoring does not fit: it needs 9.0 GB but 2.0 GB are free." in answer.err


def test_what_is_measured_is_what_was_asked_for(call, monkeypatch):
    from hmmlm import calibration

    tasks, facts = [], {"automaton_states": 32, "budget": 32, "prepare_seconds": 1.0}
    found = calibration.Measured("", 5.0, 9, 1, 64, 64, False, "", None, facts)
    record = lambda task: tasks.append(task) or found._replace(part=task.part)  # noqa: E731
    monkeypatch.setattr(calibration, "measure_apart", record)
    more = ["--kind=scalar", "--tokens=70", "--seconds=3", "--device=cpu"]
    assert call("estimate", *SHAPE, *more).status == 0
    assert [task.part for task in tasks] == ["training", "scoring", "guiding"]
    for task in tasks:
        assert (task.tables["data"]["batch_size"], task.tables["data"]["length"]) == (2, 8)
        assert task.tables["model"]["kind"] == "scalar"
        assert (task.vocab_size, task.device, task.seconds) == (30, "cpu", 3.0)
        assert (task.tokens, task.blocks) == (70, None)
    tasks.clear()
    assert (
        call("estimate", "--states=16", "--vocab=30", "--set=model.states_per_word=4").status == 0
    )
    assert [task.blocks for task in tasks] == [4] * 3
    tasks.clear()
    assert call("estimate", "--vocab=30", "--tokens=3040").status == 0
    assert [task.tables["model"]["states"] for task in tasks] == [128] * 3


def test_an_estimate_takes_the_sizes_of_a_corpus(place, call, monkeypatch):
    from hmmlm import calibration

    tasks, facts = [], {"automaton_states": 32, "budget": 32, "prepare_seconds": 1.0}
    found = calibration.Measured("", 16.0, 9, 1, 64, 64, False, "", None, facts)
    record = lambda task: tasks.append(task) or found._replace(part=task.part)  # noqa: E731
    monkeypatch.setattr(calibration, "measure_apart", record)
    Path("run.toml").write_text(BASE)
    known = Corpus.open("corpus").splits["train"]["tokens"]
    assert known == 1600
    for source in ("corpus", "run.toml"):
        answer = call("estimate", source, "--set=train.epochs=20", "--json")
        assert answer.status == 0, answer.err
        assert {(task.vocab_size, task.tokens) for task in tasks} == {(13, 1600)}
        said = "an epoch of 1,600 tokens takes about 100 s, the training of 20 epochs about 33 min"
        assert said in answer.out
        result = last_json(answer.out)
        assert (result["epoch_seconds"], result["training_seconds"]) == (100.0, 2000.0)
        tasks.clear()
    assert call("estimate", "run.toml", "--vocab=30", "--set=data.tokens=70").status == 0
    assert {(task.vocab_size, task.tokens) for task in tasks} == {(30, 70)}
    Path("run.toml").write_text(BASE.replace('"corpus"', '"gone"'))
    answer = call("estimate", "run.toml", "--no-measure")
    assert answer.status == 2 and "gone does not exist; give a corpus folder" in answer.err
    assert call("estimate", "run.toml", "--no-measure", "--vocab=9", "--tokens=9").status == 0


def test_an_estimate_of_a_recipe(call):
    answer = call("estimate", "--recipe=best", "--no-measure")
    assert answer.status == 0 and "mlp, 32,768 states in 128 blocks, " in answer.out
    assert "512 tokens a step" in answer.out


def test_estimates_that_are_refused(refused):
    assert "17 states cannot be shared equally among 4 blocks" in refused(
        "estimate", "--states=17", "--blocks=4"
    )
    assert "40 blocks need as many words but the vocabulary has 30" in refused(
        "estimate", "--states=80", "--blocks=40", "--vocab=30"
    )
    assert "use --device cpu" in refused("estimate", *SHAPE, "--device=cuda:99")
    assert "is not a number above 0" in refused("estimate", *SHAPE, "--seconds=0")
