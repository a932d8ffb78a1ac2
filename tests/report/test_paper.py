"""The paper's tables, ours beside them."""

import csv
import io
from pathlib import Path

import pytest

from lasg.analysis.compare import Spread
from lasg.core.algorithms import ALGORITHMS
from lasg.errors import LasgError
from lasg.report import figure_data, paper, paper_tables
from lasg.report.paper import Cell, Result, judge
from lasg.report.paper_tables import COLUMNS, to_row
from lasg.runs.store import Run
from tests.runs.samples import made_up, small


def result(
    loss: float | None, ours: float, std: float = 0.0, algorithm: str = "sgd", task: str = "mnist-lr", seeds: int = 5
) -> Result:
    return Result(Cell(1, "heterogeneous", task, "uploads", 1000, algorithm, loss), Spread(ours, std), seeds)


def test_the_packaged_tables_are_the_papers(paper_tables: Path) -> None:
    with paper_tables.open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert list(rows[0]) == list(COLUMNS)
    printed = paper.printed()
    assert len(printed) == len(rows) == 192
    for row, cell in zip(rows, printed, strict=True):
        loss = "" if cell.loss is None else cell.loss
        assert float(row["loss"]) == loss if row["loss"] else loss == ""
        found = (cell.table, cell.setting, cell.task, cell.budget_kind, cell.budget, cell.algorithm)
        assert tuple(map(str, found)) == tuple(row[name] for name in COLUMNS[:-1])


def test_tables_1_and_3_and_tables_2_and_4_have_72_cells_that_can_be_run() -> None:
    counts = [len(paper.cells(n)) for n in (1, 2, 3, 4)]
    assert counts == [36, 36, 36, 36]
    assert {cell.setting for n in (1, 2) for cell in paper.cells(n)} == {"heterogeneous"}
    assert {cell.setting for n in (3, 4) for cell in paper.cells(n)} == {"homogeneous"}


def test_a_table_can_be_cut_to_tasks_and_an_unknown_one_is_refused() -> None:
    assert {cell.task for cell in paper.cells(1, ["mnist-lr"])} == {"mnist-lr"}
    with pytest.raises(LasgError, match=r"no task 'digits': ijcnn1-lr, mnist-lr, covtype-lr, mnist-nn"):
        paper.cells(1, ["digits"])


@pytest.mark.parametrize("table", [1, 2, 3, 4])
def test_a_cells_run_has_the_papers_settings_and_ends_on_its_budget(table: int) -> None:
    for cell in paper.cells(table):
        spec = cell.spec(3)
        assert (spec.seed, spec.start, spec.algorithm, spec.task) == (3, "zero", cell.algorithm, cell.task)
        assert dict(spec.until) == {cell.budget_kind: cell.budget}
        assert spec.partition == {"homogeneous": "homogeneous", "heterogeneous": "sorted"}[cell.setting]


@pytest.mark.parametrize("table", [1, 2, 3, 4])
def test_the_network_row_has_ten_algorithms_without_ps(table: int) -> None:
    row = [cell.algorithm for cell in paper.cells(table, ["mnist-nn"])]
    assert row == [name for name in ALGORITHMS if name not in {"lasg-ps", "laqsg-ps"}]


def test_both_budgets_of_the_network_row_are_one_run() -> None:
    for uploads, bits in ((1, 2), (3, 4)):
        for one, other in zip(paper.cells(uploads, ["mnist-nn"]), paper.cells(bits, ["mnist-nn"]), strict=True):
            spec = one.spec(3)
            assert spec == other.spec(3)
            assert spec.marks is not None
            ends = {**spec.until, **spec.marks}
            assert ends == {"uploads": 10_000, "bits": 3200 * 32 * 431_080}
            assert list(spec.until) == (["bits"] if ALGORITHMS[spec.algorithm].quantised else ["uploads"])
            assert (spec.model, spec.eta, spec.D, spec.batch, spec.bits) == ("cnn", 0.05, 50, 0.002, 8)
            assert one.spec(3, eta=0.025).eta == 0.025


def test_the_network_rows_shards_are_those_of_the_notes() -> None:
    spec = paper.cells(1, ["mnist-nn"])[0].spec(0)
    assert (spec.partition, sum(spec.sizes or ())) == ("sizes", 60_000)
    assert paper.cells(3, ["mnist-nn"])[0].spec(0).partition == "homogeneous"


def test_our_number_is_the_loss_when_a_budget_was_first_spent(tmp_path: Path) -> None:
    cells = {n: paper.cells(n, ["mnist-nn"])[0] for n in (1, 2)}
    bits = paper.NEURAL_BITS
    run = made_up(
        tmp_path, small("sgd"), [(0, 0, 0.9), (3200, bits, 0.5), (9990, 3 * bits, 0.3), (10_000, 4 * bits, 0.2)]
    )
    assert cells[1].loss_of(run) == 0.2
    assert cells[2].loss_of(run) == 0.5


def test_a_result_has_the_columns_of_the_table_and_ours() -> None:
    values = to_row(result(0.4, 0.42, 0.01))
    assert list(values) == [*COLUMNS, "ours", "spread", "seeds", "deviation"]
    assert (values["loss"], values["ours"], values["spread"], values["seeds"]) == (0.4, 0.42, 0.01, 5)
    assert values["deviation"] == pytest.approx(0.05)


def test_one_seed_has_no_spread() -> None:
    assert to_row(result(0.4, 0.42, seeds=1))["spread"] is None


def test_our_number_is_the_mean_loss_when_the_budget_is_spent(tmp_path: Path) -> None:
    cell = result(0.4, 0).cell
    runs = [
        made_up(tmp_path / str(i), small("sgd", seed=i), [(0, 0, 0.7), (1000, 9, loss)])
        for i, loss in enumerate((1, 3))
    ]
    (found,) = paper.results([cell], {cell: runs})
    assert found.ours.mean == 2.0
    assert found.ours.std == pytest.approx(2**0.5)
    assert found.seeds == 2


def test_cells_are_counted_within_5_10_and_15_per_cent() -> None:
    names = ["sgd", "lag-wk", "qsgd", "lasg-ps"]
    found = [result(1.0, ours, algorithm=name) for name, ours in zip(names, (1.04, 0.92, 1.14, 1.3), strict=True)]
    verdict = judge(found)
    assert (verdict.cells, dict(verdict.within)) == (4, {5: 1, 10: 2, 15: 3})
    assert [r.cell.algorithm for r in verdict.beyond] == ["lasg-ps"]
    assert paper_tables.sentences(verdict)[0] == "4 cells: 1 within 5 %, 2 within 10 %, 3 within 15 %; 1 beyond 15 %."


@pytest.mark.parametrize(
    ("ours", "std", "beyond"),
    [
        (1.2, 0.0, True),
        (1.2, 0.04, True),
        (1.2, 0.11, False),
        (1.5, 0.11, True),
        (0.84, 0.09, False),
        (1.149, 0, False),
    ],
)
def test_two_standard_deviations_excuse_a_cell_only_where_seeds_spread(ours: float, std: float, beyond: bool) -> None:
    assert bool(judge([result(1.0, ours, std)]).beyond) == beyond


def test_the_best_of_a_row_must_be_one_of_the_papers_three_smallest() -> None:
    losses = {"sgd": 0.4, "lag-wk": 0.3, "lasg-wk1": 0.2, "lasg-wk2": 0.1}
    right = [result(loss, loss, algorithm=name) for name, loss in losses.items()]
    assert judge(right).best == [("mnist-lr", "lasg-wk2", True)]
    wrong = [result(loss, 0.01 if name == "sgd" else loss, algorithm=name) for name, loss in losses.items()]
    assert judge(wrong).best == [("mnist-lr", "sgd", False)]
    assert "NOT bold" in paper_tables.sentences(judge(wrong))[1]


def test_a_cell_the_paper_left_empty_is_neither_right_nor_wrong() -> None:
    verdict = judge([result(None, 0.3), result(1.0, 1.0, algorithm="qsgd")])
    assert verdict.within[5] == 1, "an empty cell was counted as reproduced"
    assert not verdict.beyond
    assert "sgd" in paper_tables.to_markdown([result(None, 0.3)])


def test_a_table_as_csv_has_its_numbers_with_six_digits() -> None:
    text = paper_tables.to_csv([to_row(result(0.4, 1 / 3, 0.01))])
    (row,) = csv.DictReader(io.StringIO(text))
    assert (row["ours"], row["loss"], row["budget"]) == ("0.333333", "0.4", "1000")


def test_a_table_as_markdown_has_one_part_a_task_and_our_best_in_bold() -> None:
    text = paper_tables.to_markdown(
        [result(0.4, 0.41), result(0.3, 0.29, algorithm="qsgd"), result(0.5, 0.6, task="covtype-lr")]
    )
    assert text.count("### ") == 2
    assert "**0.2900**" in text
    assert "+2.5 %" in text
    assert "+20.0 %" in text


# -- figures as data -----------------------------------------------------------------------------------------


def test_the_toy_figure_counts_uploads_of_ten_iterations(tmp_path: Path) -> None:
    def run(name: str, per_round: list[int]) -> Run:
        masks = [[m < n for m in range(6)] for n in per_round]
        return made_up(tmp_path / name, small("lag-wk", seed=len(name)), [(0, 0, 1.0)], masks=masks)

    always, never = run("a", [6] * 25), run("bb", [0] * 25)
    mixed = run("ccc", [6, *[0] * 9, *[1] * 10, *[0] * 5])
    rows = figure_data.toy_rows({"x": [always, never], "y": [mixed]})
    assert rows == [{"iteration": 0, "x": 30.0, "y": 6.0}, {"iteration": 10, "x": 30.0, "y": 10.0}]


def test_the_toy_figure_has_the_papers_three_series() -> None:
    specs = figure_data.toy_specs("mnist-lr", range(2), 1000, "heterogeneous")
    found = {(group[0].algorithm, group[0].c) for group in specs.values()}
    assert {("lag-wk", 0.4), ("lag-wk", 4.0), ("lasg-wk2", 0.1)} <= found
    assert all([spec.seed for spec in group] == [0, 1] for group in specs.values())


def test_the_gradients_figure_has_every_algorithm_on_covtype_and_a_row_an_evaluation(tmp_path: Path) -> None:
    assert len(figure_data.gradient_specs(range(2), 100, "heterogeneous")) == 24
    run = made_up(tmp_path, small("qsgd", seed=5), [(0, 0, 1.0), (1, 2, 0.5)])
    rows = figure_data.gradient_rows([run])
    assert [row["loss"] for row in rows] == [1.0, 0.5]
    assert rows[1] == {"algorithm": "qsgd", "seed": 5, "iteration": 1, "gradients": 1, "loss": 0.5}


def test_cells_of_some_algorithms_are_chosen_and_judged_against_the_whole_row() -> None:
    some = paper.cells(1, ["mnist-nn"], ["sgd", "lasg-wk2"])
    assert [cell.algorithm for cell in some] == ["sgd", "lasg-wk2"]
    with pytest.raises(LasgError, match="has none of the algorithms lasg-ps for mnist-nn"):
        paper.cells(1, ["mnist-nn"], ["lasg-ps"])
    worst = [result(0.4, 0.1, algorithm="sgd")]
    row = [result(loss, loss).cell for loss in (0.1, 0.2, 0.3, 0.4)]
    assert judge(worst).best == [("mnist-lr", "sgd", True)]
    assert judge(worst, row).best == [("mnist-lr", "sgd", False)]
