"""Which manifests a commit writes, and what they say."""

import random
from types import SimpleNamespace

import pytest
from icedb_iceberg.avro_files import ADDED, DELETED, ManifestCodec, avro_name, decode_list, decode_manifest, encode_list
from icedb_iceberg.manifests import FAN_IN, TARGET_FILES, ManifestSet, _summarize
from icedb_log.errors import CorruptLog

SCHEMA = {"type": "struct", "fields": [], "schema-id": 0}


class Folder:
    """Manifests of one table, in a dictionary."""

    def __init__(self):
        self.objects = {}
        self.where = {}
        self.manifests = []
        self.snapshot = 0
        self.loaded = 0

    def load(self, manifests):
        self.loaded += len(manifests)
        return [decode_manifest(self.objects[each.key], each.key) for each in manifests]

    def put(self, name, body):
        key = f"t/m/{self.snapshot}-{name}"
        assert key not in self.objects
        self.objects[key] = body
        return key, f"s3://b/{key}"

    def commit(self, *steps):
        """Run one publication of several steps; return the bytes that were written, and what each step removed."""
        before = set(self.objects)
        codec = ManifestCodec(0, (), SCHEMA)
        manifests = ManifestSet(
            self.manifests, self.where, prefix="t", location="s3://b/t", codecs={0: codec}, load=self.load, put=self.put
        )
        gone = []
        for number, (added, removed) in enumerate(steps, 1):
            self.snapshot += 1
            entries = [make_entry(name, self.snapshot) for name in added]
            gone.append(
                manifests.change(
                    {0: entries},
                    [f"t/_data/{name}" for name in removed],
                    snapshot_id=self.snapshot,
                    sequence_number=self.snapshot,
                    is_last=number == len(steps),
                )
            )
            self.check(manifests.manifests)
        self.manifests = manifests.manifests
        return sum(len(body) for key, body in self.objects.items() if key not in before), gone

    def check(self, manifests):
        """What each row of a list says is what its manifest holds."""
        rows = [each.row for each in manifests]
        snapshot = {"snapshot-id": self.snapshot, "sequence-number": self.snapshot}
        assert decode_list(encode_list("list", rows, snapshot=snapshot), "list") == rows
        for each in manifests:
            if each.row["added_snapshot_id"] != self.snapshot:
                continue
            entries = decode_manifest(self.objects[each.key], each.key)
            assert len(self.objects[each.key]) == each.row["manifest_length"]
            assert each.row["added_files_count"] == sum(entry["status"] == ADDED for entry in entries)
            assert each.row["deleted_files_count"] == sum(entry["status"] == DELETED for entry in entries)
            assert each.row["min_sequence_number"] <= each.row["sequence_number"]
            for entry in entries:
                # A manifest of this snapshot says what this snapshot did, and of all other files that they are there.
                assert (entry["status"] != 0) == (entry["snapshot_id"] == self.snapshot)

    def live(self):
        found = [
            entry["data_file"]["file_path"].removeprefix("s3://b/t/_data/")
            for each in self.manifests
            for entry in decode_manifest(self.objects[each.key], each.key)
            if entry["status"] != DELETED
        ]
        assert len(found) == len(set(found))
        assert set(self.where) == {f"t/_data/{name}" for name in found}
        return set(found)


def make_entry(name, number):
    data_file = {
        "content": 0, "file_path": f"s3://b/t/_data/{name}", "file_format": "PARQUET", "partition": {},
        "record_count": 10, "file_size_in_bytes": 1000, "lower_bounds": [{"key": 1, "value": name.encode()}],
        "value_counts": None, "null_value_counts": None, "upper_bounds": None,
    }  # fmt: skip
    return {
        "status": ADDED, "snapshot_id": number, "sequence_number": number, "file_sequence_number": number,
        "data_file": data_file,
    }  # fmt: skip


@pytest.mark.parametrize("seed", range(8))
def test_the_manifests_name_what_is_live_whatever_comes_and_goes(seed):
    chance = random.Random(seed)
    folder, live, made = Folder(), set(), 0
    for _ in range(8):
        steps, after = [], set(live)
        for _ in range(chance.randint(0, 4)):
            added = [f"p={chance.randint(0, 3)}/f{made + at}" for at in range(chance.choice([0, 1, 3, 40, 300]))]
            made += len(added)
            removed = chance.sample(sorted(after), min(len(after), chance.choice([0, 0, 1, 5, 200])))
            steps.append((added, removed))
            after = (after - set(removed)) | set(added)
        _, gone = folder.commit(*steps)
        for (_, removed), entries in zip(steps, gone, strict=True):
            said = {entry["data_file"]["file_path"].removeprefix("s3://b/t/_data/") for entry in entries}
            assert said == set(removed)
            assert not any(entry["data_file"]["lower_bounds"] for entry in entries)
        live = after
        assert folder.live() == live


def test_ten_files_into_many_write_little():
    folder = Folder()
    folder.commit(([f"p={at % 50}/f{at:06d}" for at in range(4000)], []))
    assert len(folder.manifests) == 4000 / TARGET_FILES
    sizes = []
    for commit in range(150):
        written, _ = folder.commit(([f"p={at}/c{commit:03d}_{at}" for at in range(10)], []))
        sizes.append(written)
    assert max(sizes) <= 120_000
    assert sum(sizes) / len(sizes) <= 15_000
    assert len(folder.manifests) <= 4 + 2 + 3 * FAN_IN
    assert folder.loaded <= 150 * 3


def test_manifests_of_some_size_are_joined_and_cut_by_partition():
    folder = Folder()
    for commit in range(FAN_IN):
        folder.commit(([f"p={at % 4}/f{commit:02d}_{at:03d}" for at in range(300)], []))
    assert len(folder.live()) == FAN_IN * 300
    assert [each.live_count for each in folder.manifests] == [800, 800, 800]
    named = [decode_manifest(folder.objects[each.key], each.key) for each in folder.manifests]
    partitions = [{entry["data_file"]["file_path"].split("/")[-2] for entry in entries} for entries in named]
    assert max(map(len, partitions)) == 2


def test_many_commits_in_one_publication_leave_no_more_manifests_than_one_commit():
    folder = Folder()
    folder.commit(*(([f"p={at % 30}/f{commit:02d}_{at:03d}" for at in range(111)], []) for commit in range(90)))
    assert len(folder.live()) == 9990
    assert len(folder.manifests) == 10


def test_a_merge_of_young_files_leaves_large_manifests_alone():
    folder = Folder()
    folder.commit(([f"f{at:06d}" for at in range(2000)], []))
    large = {each.key for each in folder.manifests}
    folder.commit(([f"young{at}" for at in range(10)], []))
    folder.commit((["merged"], [f"young{at}" for at in range(10)]))
    assert large <= {each.key for each in folder.manifests}
    folder.commit((["other"], []))
    assert sum(each.row["deleted_files_count"] for each in folder.manifests) == 0


def test_a_file_that_is_not_there_cannot_go():
    folder = Folder()
    folder.commit((["a"], []))
    with pytest.raises(CorruptLog, match=r"_data/b.*does not have it"):
        folder.commit(([], ["b"]))


def test_damaged_manifests_say_which_and_what_to_do():
    with pytest.raises(CorruptLog, match=r"t/m/1.*cannot be read"):
        decode_manifest(b"no avro", "t/m/1")


def test_large_manifests_that_fit_into_no_other_are_left_as_they_are():
    """Eight of just more than half a manifest were each written anew, alone, by every commit."""
    folder = Folder()
    for batch in range(FAN_IN):
        folder.commit(([f"{batch}/{at}" for at in range(TARGET_FILES // 2 + 5)], []))
    before = set(folder.objects)
    folder.commit((["one"], []))
    (key,) = set(folder.objects) - before
    assert len(decode_manifest(folder.objects[key], key)) == 1


def test_a_list_says_whether_files_of_null_are_among_those_of_a_manifest():
    codec = SimpleNamespace(spec_id=1, names=[(SimpleNamespace(result_type="string"), "p")])
    for values, said in (
        (["b", "a"], (False, b"a", b"b")),
        (["a", None], (True, b"a", b"a")),
        ([None], (True, None, None)),
    ):
        entries = [make_entry(f"f{place}", 1) for place in range(len(values))]
        for entry, value in zip(entries, values, strict=True):
            entry["data_file"]["partition"] = {"p": value}
        (found,) = _summarize(entries, codec, snapshot_id=1, sequence_number=1)["partitions"]
        assert (found["contains_null"], found["lower_bound"], found["upper_bound"]) == said


def test_a_partition_field_has_a_name_that_avro_takes():
    assert [avro_name(name) for name in ("d", "2d", "a-b")] == ["d", "_2d", "a_x2Db"]
