"""Rows of the experiments, their lines, and what is said of them."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from experiments.chiu_rush_2020 import figure3, table1, table2, table3, table4, tables
from experiments.measuring import ms_of_step
from experiments.past import search
from experiments.report import main as report
from experiments.report import page
from experiments.results import (
    KEYS,
    add_lines,
    is_done,
    make_times,
    read_lines,
    take_over,
    with_times,
)
from experiments.rows import KNESER_NEY, Drawn, Row, Taught, Teacher
from experiments.runner import cluster_file, main, make_jobs, make_timings

from hmmlm.baselines.kinds import NEURAL
from hmmlm.train.config import make_config, validation_mode
from hmmlm.train.estimate import count_parameters
from hmmlm.train.loop import Progress
from hmmlm.train.tables import override
from result_lines import lines_of, row_of

EVERY = [(name, row) for name, module in tables().items() for row in module.ROWS]


def test_times_of_a_training_alone() -> None:
    row = row_of(figure3, "2^14 states")
    same = row_of(table2, "VL-HMM 2^14")
    assert row.cut().run == replace(row, epochs=3).cut().run != row.run
    measured = {"ms_train_step": 1.25, "ms_eval_batch": 0.5, "device": "NVIDIA H200"}
    wanted = [(figure3.EXPERIMENT, row), (table2.EXPERIMENT, same)]
    (times,) = make_times(wanted, {"measured": measured}, "abc")
    assert times == {"run": row.cut().run, **measured, "commit": "abc"}
    older = {**times, "run": row.run}  # named after the whole training
    assert not make_timings(wanted, [times], Path()) and not make_timings(wanted, [older], Path())
    longer = replace(row, epochs=99)
    assert not make_timings([(figure3.EXPERIMENT, longer)], [times], Path())
    assert [job.wanted for job in make_timings(wanted, [], Path())] == [wanted]
    lines = lines_of(figure3, row)
    for taken, step, is_alone in (
        ([], 2.0, False),
        ([times], 1.25, True),
        ([older], 1.25, True),
        ([{**times, "device": "a laptop"}], 2.0, False),
    ):
        (line, _) = with_times(lines, taken)
        assert (line["ms_train_step"], line["config"]["is_timed_alone"]) == (step, is_alone)
    # A time is of so many epochs as one likes, also where it is named after others.
    found = with_times([*lines, *lines_of(figure3, longer)], [older])
    assert [line["ms_train_step"] for line in found] == [1.25] * 4


def test_times_of_lines_are_those_of_their_rows() -> None:
    """Whatever of a row the short training has, and whatever it does without."""
    network = Teacher("a network", ("train.epochs=2",))
    row = row_of(figure3, "2^14 states")
    for one in (
        replace(row, layers=network),
        replace(row, moved=True),
        replace(row, taught=Taught(network), drawn=Drawn(network, 9)),
        replace(row, settings=(*row.settings, "data.tokens=7")),
        row.shrink(),
    ):
        taken = {"run": one.cut().run, "ms_train_step": 1.25, "ms_eval_batch": 0.5}
        taken |= {"device": "NVIDIA H200", "commit": "abc"}
        (line, _) = with_times(lines_of(figure3, one), [taken])
        assert line["ms_train_step"] == 1.25


@pytest.mark.parametrize(("name", "row"), EVERY, ids=lambda part: getattr(part, "name", ""))
def test_every_row_is_a_training(name: str, row: Row) -> None:
    """Its settings go together, its batches hold 512 tokens or a baseline's, its mode is theirs."""
    for one in (row, row.shrink()):
        if one.kind != KNESER_NEY:
            config = make_config(override({}, one.changes), NEURAL)
            assert config.seed == 1111 and config.train.epochs == one.epochs
            mode = validation_mode(config.data)
            assert mode == row.mode or (mode.startswith("window") and row.mode == "streaming")
            if row.kind == "mlp" and one is row:
                assert config.data.batch_size * config.data.length == 512


def test_a_row_has_one_name_in_its_table() -> None:
    names = [(name, row.name, row.dataset) for name, row in EVERY]
    assert len(set(names)) == len(names) == 60


def test_numbers_of_the_paper() -> None:
    """Parameters come to its 11.4M and 17.3M; of hmm-lm's, ours lack those of `<pad>`."""
    for dataset, words, number in (("ptb", 10_000, 11_355_410), ("wikitext-2", 33_278, 17_337_856)):
        row = row_of(table1, "VL-HMM 2^15 (faithful)", dataset)
        config = make_config(override({}, row.changes))
        assert count_parameters(config, words) == number - 257
    printed = {row.name: (row.paper_train, row.paper_val, row.paper_ms) for row in table4.ROWS}
    assert printed["independent, M = 128"] == (115, 134, 40)
    assert printed["- neural param"] == (119, 169, 14)
    assert printed["- state dropout"] == (88, 157, 100)
    assert printed["+ block emb, M = 128"] == (122, 136, 48)
    assert [(row.paper_val, row.paper_test) for row in table1.ROWS] == [
        (125.0, 116.0), (125.0, 116.0), (284.6, None), (142.3, None), (None, 141.2), (159.9, 152.0),
        (93.6, 88.8), (60.0, 57.3),
        (166.6, 158.2), (166.6, 158.2), (None, None), (None, None), (248.7, 234.3), (210.9, 195.0),
        (124.5, 117.5), (68.6, 65.8),
    ]  # fmt: skip
    assert [row.paper_val for row in table3.ROWS if row.paper_val] == [
        137, 138, 134, 136, 180, 182, 194, 150, 142, 146, 136,
    ]  # fmt: skip


def test_rows_of_the_same_settings_share_a_training(tmp_path: Path) -> None:
    full, size = row_of(table2, "VL-HMM 2^14"), row_of(figure3, "2^14 states")
    assert full.run == size.run == row_of(table3, "Brown 16384, M = 128").run
    turned = replace(full, settings=full.settings[::-1])
    assert turned.run == full.run != replace(full, epochs=3).run
    wanted = [(table2.EXPERIMENT, full), (figure3.EXPERIMENT, size)]
    (job,) = make_jobs(wanted, [], tmp_path)
    assert job.wanted == wanted
    done = lines_of(table2, full)
    (other,) = take_over(done, wanted)[:1]
    assert other["experiment"] == figure3.EXPERIMENT and other["row"] == "2^14 states"
    assert other["val"] == done[0]["val"] and other["paper_train"] is None
    assert not make_jobs(wanted, [*done, *take_over(done, wanted)], tmp_path)
    with pytest.raises(ValueError, match=r"x sets \['data.length'\] twice"):
        Row("x", "ptb", settings=("data.length=3", "data.length=4"))


def test_a_line_for_each_mode(tmp_path: Path) -> None:
    row = row_of(table1, "VL-HMM 2^15 (packed)")
    add_lines(tmp_path / "lines", lines_of(table1, row))
    lines = read_lines(tmp_path / "lines")
    assert [line["mode"] for line in lines] == ["sentence", "streaming"]
    assert all(tuple(line) == KEYS for line in lines)
    assert lines[0]["seconds"] == 20.0 and lines[0]["config"]["settings"] == row.changes
    assert is_done(lines, table1.EXPERIMENT, row)
    assert not is_done(lines[:1], table1.EXPERIMENT, row)
    assert not is_done(lines, table1.EXPERIMENT, replace(row, epochs=2))
    assert not is_done(lines, figure3.EXPERIMENT, row)


def test_a_file_that_was_cut(tmp_path: Path) -> None:
    file = tmp_path / "lines"
    file.write_text('{"a": 1}\n\n{"a": 2}')
    add_lines(file, [{"a": 3}])
    assert read_lines(file) == [{"a": 1}, {"a": 2}, {"a": 3}]
    file.write_text('{"a": 1}\n{"a"')
    with pytest.raises(SystemExit, match=r"lines:2 is not whole; delete or mend that line"):
        read_lines(file)


def test_lines_of_another_shape(tmp_path: Path) -> None:
    file = tmp_path / "lines"
    (line, _) = lines_of(figure3, figure3.ROWS[0])
    for text, message in (
        ("7", "is no object of JSON; delete or mend that line"),
        ('{"a": 1}', "is of another shape: no 'config'; delete or mend that line"),
        (json.dumps({**line, "config": {}}), "is of another shape: no 'run'; delete or mend"),
    ):
        file.write_text(f"{json.dumps(line)}\n{text}\n")
        with pytest.raises(SystemExit, match=f"lines:2 {message}"):
            report(["--lines", str(file), "--out", str(tmp_path / "page.md")])
    words = ["--data=none", "--work", str(tmp_path), "--commit=x", "--out", str(file)]
    file.write_text('{"a": 1}\n')
    with pytest.raises(SystemExit, match="lines:1 is of another shape: no 'config'"):
        main({figure3.EXPERIMENT: figure3.ROWS}, "", words)


def test_notes_outlive_the_process_but_not_the_run(tmp_path: Path) -> None:
    wanted = [(figure3.EXPERIMENT, figure3.ROWS[0])]
    (job,) = make_jobs(wanted, [], tmp_path)
    job.folder.mkdir(parents=True)
    job.note(seconds=4.0, trained=True)
    assert make_jobs(wanted, [], tmp_path)[0].notes == {"seconds": 4.0, "trained": True}
    job.folder.rmdir()
    assert make_jobs(wanted, [], tmp_path)[0].notes == {"seconds": 0.0}


def test_files_of_clusters(tmp_path: Path, capsys) -> None:
    """Unless `<eos>` and `<unk>` share blocks as in hmm-lm, two of them are no clusters."""
    faithful, packed = (row_of(table1, f"VL-HMM 2^15 ({how})") for how in ("faithful", "packed"))
    assert cluster_file(tmp_path, faithful).name == "ptb-brown-128.paths"
    assert cluster_file(tmp_path, packed).name == "ptb-brown-126.paths"
    assert row_of(table3, "Uniform 8192, k = 128").clusters is None
    words = ["--data", "texts", "--work", str(tmp_path), "--clusters", str(tmp_path), "--commit=x"]
    with pytest.raises(SystemExit) as error:
        main({figure3.EXPERIMENT: figure3.ROWS}, "", [*words, "--out", str(tmp_path / "lines")])
    assert "hmmlm cluster --text texts/ptb --method brown --clusters 128" in str(error.value)


def test_moved_blocks_need_their_file(tmp_path: Path) -> None:
    moved = row_of(search, "exchange, moved, uneven 0.5, 2^14")
    assert cluster_file(tmp_path, moved).name == "ptb-moved-126.paths"
    assert moved.run != row_of(search, "exchange, uneven 0.5, 2^14").run
    words = ["--data", "texts", "--work", str(tmp_path), "--commit=x", "--row", moved.name]
    words += ["--out", str(tmp_path / "lines")]
    with pytest.raises(SystemExit, match="needs a file of hmmlm recluster; give --clusters DIR"):
        main({search.EXPERIMENT: search.ROWS}, "", words)
    with pytest.raises(SystemExit, match=r"hmmlm recluster MODEL --on .*ptb.corpus --out .*ptb-m"):
        main({search.EXPERIMENT: search.ROWS}, "", [*words, "--clusters", str(tmp_path)])


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--smoke", "--row=nothing"], "There is no row 'nothing'; there are: 2\\^10 states; 2"),
        (["--data=gone", "--work=WORK", "--out=WORK/x", "--commit=x"], "gone has no folder ptb"),
        (
            ["--smoke", "--work=WORK", "--out=experiments/results/chiu_rush_2020.jsonl"],
            "not those of",
        ),
        (["--smoke", "--time", "--out=experiments/results/chiu_rush_2020.jsonl"], "not those of"),
        (["--smoke", "--dataset=wikitext2"], "no such row of wikitext2; there are: ptb"),
        (["--data=DIR", "--work=WORK", "--epochs=1", "--commit=x"], "with --epochs give another"),
        (["--data=WORK", "--work=WORK/w", "--out=WORK/x", "--commit=x"], "could not be prepared"),
    ],
)
def test_what_is_refused(words: list[str], message: str, tmp_path: Path) -> None:
    (tmp_path / "ptb").mkdir()  # with nothing in it
    words = [word.replace("WORK", str(tmp_path)) for word in words]
    with pytest.raises(SystemExit, match=message):
        main({figure3.EXPERIMENT: figure3.ROWS}, "", words)


def test_rows_are_listed_and_no_time_is_no_row(tmp_path: Path, capsys) -> None:
    assert main({table1.EXPERIMENT: table1.ROWS}, "", ["--list", "--dataset=ptb"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 8
    words = ["--smoke", "--work", str(tmp_path), "--seconds=0", "--row=KN 5-gram"]
    assert main({table1.EXPERIMENT: table1.ROWS}, "", words) == 0
    said = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert said["left"] == ["ptb: KN 5-gram", "wikitext-2: KN 5-gram"] and said["done"] == 0
    assert not (tmp_path / "results.jsonl").exists()


def test_a_line_says_what_ran_beside_it(tmp_path: Path, capsys) -> None:
    words = ["--smoke", "--work", str(tmp_path), "--dataset=ptb", "--row=KN 5-gram"]
    words += ["--workers=2", "--beside=3"]
    assert main({table1.EXPERIMENT: table1.ROWS}, "", words) == 0
    lines = read_lines(tmp_path / "results.jsonl")
    assert [line["config"]["workers"] for line in lines] == [5, 5]
    for wrong, message in (
        (["--beside=-1"], "--beside is -1 but must be at least 0"),
        (["--time", "--beside=1"], "leave out --workers and --beside"),
        (["--time", "--workers=2"], "leave out --workers and --beside"),
    ):
        with pytest.raises(SystemExit):
            main({table1.EXPERIMENT: table1.ROWS}, "", ["--smoke", *wrong])
        assert message in capsys.readouterr().err


def test_a_row_that_fails(tmp_path: Path, capsys) -> None:
    words = ["--smoke", "--work", str(tmp_path), "--dataset=ptb", "--row=KN 5-gram"]
    assert main({table1.EXPERIMENT: table1.ROWS}, "", [*words, "--seconds=0"]) == 0
    (shard,) = (tmp_path / "built-in.corpus").glob("test*.bin")
    shard.write_bytes(bytes(reversed(shard.read_bytes())))
    capsys.readouterr()
    assert main({table1.EXPERIMENT: table1.ROWS}, "", words) == 1
    said = json.loads(capsys.readouterr().out.splitlines()[-1])
    (failed,) = said["failed"]
    assert failed.startswith("KN 5-gram (ptb): ") and "has changed since it was written" in failed
    assert said["done"] == 0 and said["left"] == ["ptb: KN 5-gram"]


def test_the_time_of_a_step_is_the_median_of_the_steady_part() -> None:
    ends = [9.0, 9.5, 9.7, 9.9, 12.0, 12.2, 12.4, 12.6, 12.8, 13.0, 13.2]
    steps = [
        Progress(n, 11, 1, 1.0, 2.7, 10 * n, 10 * n / end, 0.1, None)
        for n, end in enumerate(ends, 1)
    ]
    assert ms_of_step(steps) == pytest.approx(200, abs=1e-3)
    assert ms_of_step(steps[:1]) is None


def test_the_page_is_that_of_the_lines(tmp_path: Path) -> None:
    """What is committed has not been edited by hand, nor left behind."""
    assert report(["--out", str(tmp_path / "results.md")]) == 0
    docs = Path(__file__).parents[2] / "docs"
    assert (docs / "results.md").read_text() == (tmp_path / "results.md").read_text()


def test_a_page_without_lines_has_no_number_of_ours(tmp_path: Path) -> None:
    text = page([], {}, tmp_path / "none.jsonl")
    assert text.count("not run yet") >= len(EVERY)
    assert "| HMM \\|Z\\| = 900 | ptb | 10M |  | 284.6 | not run yet |" in text
    assert "Deviations:" in text and "N(0, 1), rate 0.01 on WikiText-2" in text


def test_a_page_with_figures(tmp_path: Path) -> None:
    lines = [line for row in figure3.ROWS[:3] for line in lines_of(figure3, row, 150.25)]
    lines += [line for row in table4.ROWS for line in lines_of(table4, row, 140.5)]
    add_lines(tmp_path / "lines.jsonl", lines)
    words = ["--lines", str(tmp_path / "lines.jsonl"), "--out", str(tmp_path / "docs/page.md")]
    words += ["--times", str(tmp_path / "none")]
    assert report(words) == 0
    text = (tmp_path / "docs/page.md").read_text()
    assert "| 2^10 states | ptb |  | 7 |  | **150.2** | 150.2 |" in text
    assert "![Figure 3" in text and "(figure3.svg)" in text and "(figure4.svg)" in text
    assert "Device: NVIDIA H200. Commit: abc. Seed: 1111." in text and "rehearsal" not in text
    drawn = (tmp_path / "docs/figure3.svg").read_bytes()
    assert report(words) == 0 and (tmp_path / "docs/figure3.svg").read_bytes() == drawn


def test_lines_of_a_rehearsal_are_no_results(tmp_path: Path) -> None:
    add_lines(tmp_path / "lines", lines_of(figure3, figure3.ROWS[0].shrink()))
    with pytest.raises(SystemExit, match="has lines of --smoke, which are no results; give --out"):
        report(["--lines", str(tmp_path / "lines")])


def test_a_page_of_lines_that_are_not_there(tmp_path: Path, capsys) -> None:
    with pytest.raises(SystemExit, match="2"):
        report(["--lines", str(tmp_path / "typo"), "--out", str(tmp_path / "page.md")])
    assert "typo does not exist; give what an experiment wrote" in capsys.readouterr().err
    assert not (tmp_path / "page.md").exists()
