"""Charts of characters: sizes that hold, zero that is empty, anything above zero that is seen."""

from icedb_local.charts import render_chart


def test_every_line_fits_and_the_axis_names_both_ends():
    points = [(index / 2, index * 10) for index in range(100)]
    lines = render_chart(points, width=60, height=5)
    assert len(lines) == 7
    assert all(len(line) <= 60 for line in lines)
    assert lines[0].startswith("990 ┤")
    assert lines[-1].rstrip().endswith("50 s")


def test_heights_follow_the_values():
    points = [(index, value) for index, value in enumerate([0, 1, 8, 4, 0])]
    columns = list(zip(*(line.ljust(40)[3:] for line in render_chart(points, width=40, height=1)[:1]), strict=True))
    drawn = "".join(cell for (cell,) in columns)
    assert drawn[0] == " "
    assert "█" in drawn
    assert "▄" in drawn
    assert drawn.rstrip()[-1] != "█"


def test_small_values_are_still_seen_and_ascii_stays_ascii():
    points = [(0, 0), (1, 1), (2, 1000)]
    lines = render_chart(points, width=40, height=4, is_ascii=True)
    assert all(line.isascii() for line in lines)
    assert lines[3].count("#") > lines[0].count("#") > 0


def test_nothing_to_draw():
    assert render_chart([], width=40, height=4) == []
    assert len(render_chart([(0, 0)], width=10, height=3)) == 5
