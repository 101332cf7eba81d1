"""`elasticdl data`: what a user types and sees."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

from edl_allreduce.cli.data import main
from edl_allreduce.data import open_source
from edl_allreduce.data.example import decode_example
from edl_allreduce.data.recordio import RecordIOWriter
from edl_allreduce.data.tfrecord import TFRecordWriter
from edl_allreduce.errors import DataError, UsageError


@pytest.fixture
def records(tmp_path):
    directory = tmp_path / "data"
    directory.mkdir()
    with TFRecordWriter(directory / "data-00000") as writer:
        for number in range(10):
            writer.write(b"record %d" % number)
    return directory


class TestMake:
    @pytest.mark.parametrize("form", ["recordio", "tfrecord"])
    def test_digits_become_examples_as_elasticdl_wrote_them(self, tmp_path, capsys, form):
        assert main(["make", "digits", str(tmp_path), f"--format={form}", "--records_per_shard=1000"]) == 0
        out = capsys.readouterr().out
        assert f"{tmp_path}/digits/train: 1437 records in 2 files ({form})" in out
        assert sorted(p.name for p in (tmp_path / "digits" / "train").iterdir()) == [
            "data-00000",
            "data-00001",
        ]
        source = open_source(str(tmp_path / "digits" / "test"))
        assert (source.metadata.kind, len(source)) == (form, 360)
        features = decode_example(source.read([0])[0])
        assert len(features["image"].values) == 64
        assert max(features["image"].values) == 16.0
        assert len(features["label"].values) == 1

    def test_arrays_keep_shape_and_type(self, tmp_path):
        assert main(["make", "digits", str(tmp_path), "--format=npy", "--fraction=0.1"]) == 0
        source = open_source(str(tmp_path / "digits" / "train"))
        columns = source.read(range(len(source)))
        assert columns["image"].shape == (144, 8, 8)
        assert columns["image"].dtype == np.uint8

    def test_tables_become_csv_with_header(self, tmp_path):
        assert main(["make", "heart", str(tmp_path), "--format=csv", "--records_per_shard=2000"]) == 0
        source = open_source(str(tmp_path / "heart" / "train"))
        assert len(source) == 2400
        assert source.metadata.column_names[0] == "age"
        assert source.metadata.column_names[-2:] == ("thal", "target")
        first = source.read([0])[0].decode().split(",")
        assert len(first) == 14
        assert first[12] in ("normal", "reversible", "fixed")

    def test_words_are_written_without_pickle(self, tmp_path):
        assert main(["make", "heart", str(tmp_path), "--format=npy"]) == 0
        assert open_source(str(tmp_path / "heart" / "test")).read([0])["thal"].dtype.kind == "U"

    def test_images_do_not_fit_into_csv_and_nothing_is_left(self, tmp_path):
        with pytest.raises(DataError, match="several values per record"):
            main(["make", "digits", str(tmp_path), "--format=csv"])
        assert list(tmp_path.iterdir()) == []

    def test_what_exists_is_replaced_only_when_asked(self, tmp_path):
        (tmp_path / "iris").mkdir()
        (tmp_path / "iris" / "mine").touch()
        with pytest.raises(DataError, match=r"exists already.*--overwrite"):
            main(["make", "iris", str(tmp_path)])
        assert (tmp_path / "iris" / "mine").exists()
        assert main(["make", "iris", str(tmp_path), "--overwrite"]) == 0
        assert sorted(p.name for p in (tmp_path / "iris").iterdir()) == [".made.json", "test", "train"]
        assert [p.name for p in tmp_path.iterdir()] == ["iris"]

    def test_what_is_there_already_as_asked_for_is_left_alone(self, tmp_path, capsys):
        assert main(["make", "iris", str(tmp_path), "--format=npy"]) == 0
        before = {p: p.stat().st_mtime_ns for p in (tmp_path / "iris").rglob("*")}
        capsys.readouterr()
        assert main(["make", "iris", str(tmp_path), "--format", "npy"]) == 0
        assert "is there already" in capsys.readouterr().out
        assert {p: p.stat().st_mtime_ns for p in (tmp_path / "iris").rglob("*")} == before
        with pytest.raises(DataError, match=r"exists already, made with format=npy.*--overwrite"):
            main(["make", "iris", str(tmp_path), "--format=csv"])
        next((tmp_path / "iris" / "train").glob("*.npy")).unlink()
        with pytest.raises(DataError, match=r"exists already.*--overwrite"):
            main(["make", "iris", str(tmp_path), "--format=npy"])

    @pytest.mark.parametrize(
        ("words", "message"),
        [
            (["digit", "o"], "[Uu]nknown data set digit.* Did you mean digits"),
            (["digits"], "OUT_DIR"),
            (["digits", "o", "--fraction=2"], "'2' is not a number above 0 and up to 1"),
            (["digits", "o", "--records_per_shard=0"], "'0' is not a whole number of at least 1"),
            (["digits", "o", "--formt=npy"], "Did you mean --format"),
        ],
    )
    def test_wrong_usage_is_explained(self, words, message):
        with pytest.raises(UsageError, match=message):
            main(["make", *words])

    def test_a_wrong_source_directory_is_named(self, tmp_path):
        with pytest.raises(DataError, match="is no directory"):
            main(["make", "mnist", str(tmp_path), f"--source_dir={tmp_path}/none"])


class TestInfo:
    def test_examples_are_shown(self, tmp_path, capsys):
        main(["make", "iris", str(tmp_path), "--format=tfrecord"])
        capsys.readouterr()
        assert main(["info", f"{tmp_path}/iris/train"]) == 0
        out = capsys.readouterr().out
        for line in (
            "format:      tfrecord",
            "records:     120",
            "  label: int64 x 1:",
            "  petal_length: float x 1:",
        ):
            assert line in out

    def test_other_records_columns_lines_and_images_are_shown(self, tmp_path, records, capsys):
        main(["info", str(records)])
        assert "8 bytes, not a tf.train.Example: b'record 0'" in capsys.readouterr().out
        np.save(tmp_path / "x.npy", np.arange(6, dtype=np.int32).reshape(2, 3))
        main(["info", f"{tmp_path}/x.npy"])
        assert "x: int32 (3,), from 0 to 2" in capsys.readouterr().out
        (tmp_path / "a.csv").write_text("a,b\n1,2\n")
        main(["info", f"{tmp_path}/a.csv"])
        assert "columns:     a, b" in (out := capsys.readouterr().out)
        assert "  1,2" in out
        (tmp_path / "i" / "cat").mkdir(parents=True)
        (tmp_path / "i" / "cat" / "1.png").write_bytes(b"\x89PNG\r\n\x1a\n...")
        main(["info", f"{tmp_path}/i"])
        assert "classes:     1: cat" in (out := capsys.readouterr().out)
        assert "image: 11 bytes" in out


class TestIndexAndCheck:
    def test_the_index_is_built(self, records, capsys):
        assert main(["index", str(records)]) == 0
        assert "10 records in 1 file, indexed" in capsys.readouterr().out
        assert (records / ".data-00000.idx").exists()

    def test_good_data_passes(self, records, capsys):
        assert main(["check", str(records)]) == 0
        assert "all 10 records are good" in capsys.readouterr().out

    def test_bad_data_fails_and_each_bad_record_is_named(self, records, capsys):
        path = records / "data-00000"
        data = bytearray(path.read_bytes())
        data[24 * 3 + 14] ^= 1
        path.write_bytes(data[:-2])
        assert main(["check", str(records)]) == 1
        out = capsys.readouterr().out
        assert "data-00000: record 3 at offset 72" in out
        assert "data-00000: record 9 at offset 216" in out
        assert "2 of 10 records are bad. Write" in out
        assert "--max_bad_records=2" in out

    def test_records_that_nobody_can_find_any_more_are_counted_too(self, records, capsys):
        path = records / "data-00000"
        data = bytearray(path.read_bytes())
        data[24 * 3] ^= 1
        path.write_bytes(data)
        assert main(["check", str(records)]) == 1
        out = capsys.readouterr().out
        assert "record 3 at offset 72" in out and "the last 168 bytes of the file cannot be read" in out
        assert "1 of 4 records is bad, and about 6 more are lost" in out

    def test_a_misspelt_parameter_is_refused(self, records):
        with pytest.raises(UsageError, match=r"reader_typ is not known\. Did you mean reader_type\?"):
            main(["check", str(records), "--data_reader_params=reader_typ=tfrecord"])


class TestSplit:
    def test_parts_lie_under_the_number_of_their_trainer(self, tmp_path, records, capsys):
        out = tmp_path / "jobs"
        assert main(["split", str(records), "--split_count=3", f"--out_dir={out}", "--job_name=j"]) == 0
        assert sorted(p.name for p in (out / "j").iterdir()) == ["0", "1", "2", "output"]
        parts = [open_source(str(out / "j" / str(n) / "data")) for n in range(3)]
        assert [len(part) for part in parts] == [4, 3, 3]
        assert [r for part in parts for r in part.read(range(len(part)))] == [
            b"record %d" % n for n in range(10)
        ]
        assert {part.metadata.kind for part in parts} == {"tfrecord"}

    def test_the_environment_of_a_job_is_honoured(self, tmp_path, records, monkeypatch):
        monkeypatch.setenv("SPLIT_COUNT", "2")
        monkeypatch.setenv("OUT_DIR", str(tmp_path / "o"))
        assert main(["split", str(records)]) == 0
        assert len(open_source(str(tmp_path / "o" / "1" / "data"))) == 5

    @pytest.mark.parametrize(
        ("variables", "message"),
        [
            ({}, "--split_count"),
            ({"SPLIT_COUNT": "2"}, "--out_dir"),
            ({"SPLIT_COUNT": "two"}, "SPLIT_COUNT: 'two' is not a whole number"),
        ],
    )
    def test_missing_settings_are_named(self, records, monkeypatch, variables, message):
        for name in ("SPLIT_COUNT", "OUT_DIR"):
            monkeypatch.delenv(name, raising=False)
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        with pytest.raises(UsageError, match=message):
            main(["split", str(records)])

    def test_more_parts_than_records_are_refused(self, tmp_path, records):
        with pytest.raises(DataError, match="10 records cannot be split into 11 parts"):
            main(["split", str(records), "--split_count=11", f"--out_dir={tmp_path}/o"])

    def test_each_format_keeps_its_records(self, tmp_path):
        sources = tmp_path / "in"
        (sources / "images" / "cat").mkdir(parents=True)
        for n in range(5):
            (sources / "images" / "cat" / f"{n}.png").write_bytes(b"\x89PNG\r\n\x1a\n%d" % n)
        (sources / "a.tsv").write_text("x\ty\n" + "".join(f"{n}\t{n}.5\n" for n in range(5)))
        np.savez(sources / "a.npz", x=np.arange(5), y=np.arange(10).reshape(5, 2))
        with RecordIOWriter(sources / "a.recordio") as writer:
            for n in range(5):
                writer.write(b"%d" % n)
        for name in ("images", "a.tsv", "a.npz", "a.recordio"):
            out = tmp_path / "out" / name
            main(["split", str(sources / name), "--split_count=2", f"--out_dir={out}"])
            whole = open_source(str(sources / name))
            parts = [open_source(str(out / str(n) / "data")) for n in range(2)]
            assert [len(part) for part in parts] == [3, 2]
            assert [part.metadata.kind for part in parts] == [whole.metadata.kind] * 2
            for part, rows in zip(parts, (range(3), range(3, 5)), strict=True):
                expected, got = whole.read(rows), part.read(range(len(part)))
                if isinstance(expected, list):
                    assert got == expected
                else:
                    assert {k: v.tolist() for k, v in got.items()} == {
                        k: v.tolist() for k, v in expected.items()
                    }


def test_help_names_the_commands_and_data_sets(capsys):
    assert main(["--help"]) == 0
    assert "split" in capsys.readouterr().out
    assert main([]) == 1
    with pytest.raises(SystemExit) as ended:
        main(["make", "--help"])
    assert ended.value.code == 0
    assert "fashion_mnist" in capsys.readouterr().out
    with pytest.raises(UsageError, match="Did you mean make"):
        main(["mak"])


def test_neither_tensorflow_nor_pyarrow_is_imported(records):
    code = (
        "import sys; from edl_allreduce.cli.data import main; main(sys.argv[1:]);"
        "heavy = {'tensorflow', 'pyarrow', 'sklearn', 'grpc', 'kubernetes'} & set(sys.modules);"
        "sys.exit(f'imported {heavy}' if heavy else 0)"
    )
    run = subprocess.run([sys.executable, "-c", code, "info", str(records)], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
