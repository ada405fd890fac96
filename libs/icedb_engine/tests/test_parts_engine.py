"""The native engine reads what is there now, not what was there before under the same name."""

import random

import pyarrow as pa
import pyarrow.parquet as pq
from icedb_engine.engine import open_engine
from icedb_engine.limits import EngineLimits

FILES = 300
"""Of so many, some were read wrongly while DuckDB kept blocks of files."""


def test_a_file_in_the_place_of_another_one_is_read(tmp_path):
    chance = random.Random(1)
    path = tmp_path / "0.parquet"
    with open_engine(EngineLimits(), tmp_path) as engine:
        for _ in range(FILES):
            numbers = [chance.randrange(10**6) for _ in range(20)]
            texts = [chance.choice("abcd") * chance.randrange(30) for _ in numbers]
            pq.write_table(pa.table({"n": numbers, "s": texts}), path, compression="zstd")
            rows = engine.sql(f"SELECT n, s FROM read_parquet('{path}')").fetchall()
            assert rows == list(zip(numbers, texts, strict=True))
