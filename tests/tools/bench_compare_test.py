"""scripts/bench-compare compares two programs that print figures."""

import importlib.machinery
import importlib.util
import json
import os
import pathlib
import subprocess
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]


class BenchCompare(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)

    def program(self, name, figures):
        """A program that prints one list of figures after another, as `tern bench --json` does."""
        path = pathlib.Path(self.folder.name) / name
        runs = [[{"case": "pool.pair", "name": key, "value": values[turn], "unit": unit, "better": better}
                 for key, (unit, better, values) in figures.items()] for turn in range(3)]
        for turn, run in enumerate(runs):
            (path.parent / f"{name}.{turn}").write_text(json.dumps(run))
        path.write_text(f'#!/bin/sh\nn=$(cat "$0.count" 2>/dev/null || echo 0)\n'
                        f'echo $((n + 1)) >"$0.count"\ncat "$0.$n"\n')
        path.chmod(0o755)
        return path

    def compare(self, before, now, *options):
        return subprocess.run([ROOT / "scripts/bench-compare", self.program("before", before), "--now",
                               self.program("now", now), "--bench", "pool", *options],
                              capture_output=True, text=True, check=False)

    def test_reports_what_is_worse_beyond_noise(self):
        run = self.compare({"slow": ("ns", "lower", [10, 10, 10]), "rate": ("GB/s", "higher", [50, 50, 50])},
                           {"slow": ("ns", "lower", [12, 12, 12]), "rate": ("GB/s", "higher", [40, 40, 40])})
        self.assertEqual(run.returncode, 1, run.stderr)
        self.assertRegex(run.stdout, r"slow +10 +12 ns +20\.0% +5\.0% WORSE")
        self.assertRegex(run.stdout, r"rate +50 +40 GB/s +25\.0% +5\.0% WORSE")
        self.assertIn("2 figures compared: 2 worse, 0 better", run.stdout)

    def test_a_difference_within_the_spread_is_noise(self):
        run = self.compare({"time": ("ns", "lower", [9, 10, 14])}, {"time": ("ns", "lower", [11, 12, 13])})
        self.assertEqual(run.returncode, 0, run.stdout)
        self.assertIn("0 worse, 0 better, 1 within noise", run.stdout)

    def test_a_count_has_no_tolerance(self):
        run = self.compare({"instructions": ("", "lower", [186] * 3)}, {"instructions": ("", "lower", [187] * 3)})
        self.assertEqual(run.returncode, 1)

    def test_reports_what_is_better(self):
        run = self.compare({"instructions": ("", "lower", [186] * 3)}, {"instructions": ("", "lower", [183] * 3)})
        self.assertEqual(run.returncode, 0)
        self.assertIn("0 worse, 1 better", run.stdout)

    def test_figures_of_one_version_are_counted(self):
        run = self.compare({"a": ("ns", "lower", [1] * 3), "old": ("ns", "lower", [1] * 3)},
                           {"a": ("ns", "lower", [1] * 3), "new": ("ns", "lower", [1] * 3)}, "--all")
        self.assertIn("1 figures compared", run.stdout)
        self.assertIn("2 figures are in one version only", run.stdout)

    def test_a_case_of_one_version_is_left_out(self):
        old = pathlib.Path(self.folder.name) / "old"
        old.write_text("#!/bin/sh\necho \"tern bench: no case is called 'pool.pair'.\" >&2\nexit 2\n")
        old.chmod(0o755)
        run = subprocess.run([ROOT / "scripts/bench-compare", old, "--now",
                              self.program("now", {"a": ("ns", "lower", [1] * 3)}), "--bench", "pool.pair"],
                             capture_output=True, text=True, check=False)
        self.assertEqual(run.returncode, 0, run.stderr)
        self.assertIn("1 figures are in one version only", run.stdout)
        self.assertIn("has no case 'pool.pair'", run.stderr)

    def test_runs_the_command_itself(self):
        tool = os.environ["TERN_TOOL"]
        run = subprocess.run([ROOT / "scripts/bench-compare", tool, "--now", tool, "--bench", "pool.hit", "--quick",
                              "--rounds", "1", "--all"], capture_output=True, text=True, check=False)
        self.assertIn("figures compared", run.stdout, run.stderr)
        self.assertIn("driver calls", run.stdout)

    def test_an_archive_has_a_folder_of_its_own(self):
        compare = importlib.machinery.SourceFileLoader("bench_compare", str(ROOT / "scripts/bench-compare"))
        module = importlib.util.module_from_spec(importlib.util.spec_from_loader("bench_compare", compare))
        compare.exec_module(module)
        module.ROOT = pathlib.Path(self.folder.name)
        folders = []
        for name in ("first", "second"):
            (module.ROOT / name).mkdir()
            (module.ROOT / name / f"{name}.txt").touch()
            archive = module.ROOT / f"{name}.tgz"
            subprocess.run(["tar", "-czf", archive, "-C", module.ROOT / name, "."], check=True)
            folders.append(module.sources_of(archive))
        self.assertEqual([[one.name for one in folder.iterdir()] for folder in folders], [["first.txt"], ["second.txt"]])

    def test_refuses_what_is_no_version(self):
        run = subprocess.run([ROOT / "scripts/bench-compare", "no-such-version"], capture_output=True, text=True,
                             check=False)
        self.assertNotEqual(run.returncode, 0)
        self.assertIn("no-such-version", run.stderr)


if __name__ == "__main__":
    unittest.main()
