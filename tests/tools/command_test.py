"""The tern command as a person and as a script would use it."""

import json
import os
import pathlib
import pty
import re
import struct
import subprocess
import tempfile
import time
import unittest

TERN = os.environ["TERN_TOOL"]
SEEDS = os.environ.get("TERN_TRACE_SEEDS")
EXAMPLES = os.environ.get("TERN_EXAMPLES")


def tern(*arguments, **environment):
    """Runs the command with a clean set of TERN_ variables."""
    env = {name: value for name, value in os.environ.items() if not name.startswith("TERN_")}
    return subprocess.run([TERN, *arguments], env=env | environment, capture_output=True, text=True,
                          check=False)


# A device that no machine has: the backend is missing, or has fewer.
ABSENT = (r"^tern: (backend 'cuda' is not available: .*|'cuda:999' cannot be opened: backend 'cuda' "
          r"has devices 0\.\.\d+)\.\n$")


class Info(unittest.TestCase):
    def test_lists_the_host_and_says_why_others_are_absent(self):
        run = tern("info", "--all")
        self.assertEqual(run.returncode, 0, run.stderr)
        self.assertIn("host", run.stdout)
        backends = json.loads(tern("info", "--json").stdout)["backends"]
        available = {backend["name"]: backend["available"] for backend in backends}
        for name in ("cuda", "opencl"):
            self.assertEqual(len(re.findall(rf"(?m)^{name}", run.stdout)), 1)
            if not available[name]:
                self.assertRegex(" ".join(run.stdout.split()), rf"{name} backend '{name}' is not available: .*\.")

    def test_json_is_valid_and_says_the_same(self):
        info = json.loads(tern("info", "--json").stdout)
        backends = {backend["name"]: backend for backend in info["backends"]}
        self.assertTrue(backends["host"]["available"])
        self.assertEqual(backends["host"]["devices"][0]["spec"], "host")
        self.assertGreater(backends["host"]["devices"][0]["total_bytes"], 0)
        self.assertTrue(backends["host"]["devices"][0]["capabilities"]["virtual_memory"])
        for name, backend in backends.items():
            self.assertEqual(backend["available"], "reason" not in backend, name)

    def test_shows_the_effective_configuration(self):
        info = json.loads(tern("info", "--json", TERN_STREAM_POOL="8").stdout)
        values = {entry["name"]: entry["value"] for entry in info["configuration"]}
        self.assertEqual(values["TERN_STREAM_POOL"], "8")

    def test_refuses_a_variable_with_trailing_text(self):
        run = tern("info", TERN_HOST_THREADS="4x")
        self.assertEqual(run.returncode, 2)
        self.assertIn("TERN_HOST_THREADS='4x' is not accepted. Set it to a whole number from 1 to 1024",
                      run.stdout)
        self.assertIn("configuration_error", json.loads(tern("info", "--json", TERN_HOST_THREADS="4x").stdout))

    def test_points_at_a_misspelt_variable(self):
        self.assertRegex(tern("info", "--all", TERN_DEVIC="host").stdout, r"TERN_DEVIC +not a variable")


    def test_is_short_and_fits_the_terminal(self):
        for columns in (60, 100):
            run = tern("info", COLUMNS=str(columns))
            self.assertEqual(run.returncode, 0, run.stderr)
            lines = run.stdout.splitlines()
            # Lines that a narrow terminal breaks count once.
            self.assertLessEqual(len([line for line in lines if not line.startswith(" " * 14)]), 14, run.stdout)
            # A path may be longer than a line; nothing else is.
            for line in lines:
                self.assertTrue(len(line) <= columns or "/" in line, line)
            for name in ("host", "sim:0", "cuda", "opencl", "default", "settings"):
                self.assertRegex(run.stdout, rf"(?m)^  {name}")
        backends = json.loads(tern("info", "--json").stdout)["backends"]
        for backend in backends:
            if not backend["available"]:
                self.assertIn(backend["reason"], " ".join(tern("info").stdout.split()))

    def test_the_details_fit_the_terminal_too(self):
        for columns in (60, 100):
            run = tern("info", "--all", COLUMNS=str(columns))
            self.assertEqual(run.returncode, 0, run.stderr)
            for line in run.stdout.splitlines():
                # A word may be longer than the rest of its line; nothing else is.
                self.assertTrue(len(line) <= columns or len(line.split()) <= 2, line)
            for name in ("host", "sim", "cuda", "Configuration", "TERN_SIM_TRACE"):
                self.assertRegex(run.stdout, rf"(?m)^ *{name}")
            self.assertIn("Accepts 1 to 1024.", " ".join(run.stdout.split()))

    def test_shows_the_variables_that_are_set(self):
        self.assertRegex(tern("info", TERN_STREAM_POOL="8").stdout, r"settings +TERN_STREAM_POOL=8\n")
        self.assertRegex(tern("info").stdout, "settings +no TERN_ variable is set")
        self.assertRegex(tern("info", TERN_DEVICE="host").stdout, r"open_best_device\(\) opens host\n")
        self.assertRegex(tern("info", TERN_DEVIC="host").stdout, r"TERN_DEVIC is not a variable of Tern")


class Doctor(unittest.TestCase):
    def test_says_of_each_subject_whether_it_is_well(self):
        run = tern("doctor", "--json")
        checks = {check["subject"]: check for check in json.loads(run.stdout)}
        for subject in ("NVIDIA driver", "OpenCL", "host memory", "locked memory", "huge pages", "mappings",
                        "open files", "shared memory", "settings"):
            check = checks[subject]
            self.assertIn(check["health"], ("ok", "absent", "advice", "problem"))
            self.assertTrue(check["finding"].endswith((".", "`")), check)
            if check["health"] in ("advice", "problem"):
                self.assertIn("remedy", check)
        problems = [check for check in checks.values() if check["health"] == "problem"]
        self.assertEqual(run.returncode, 1 if problems else 0)
        text = tern("doctor", COLUMNS="80").stdout
        for subject in checks:
            self.assertIn(subject, text)

    def test_a_limit_of_the_process_is_seen(self):
        env = {name: value for name, value in os.environ.items() if not name.startswith("TERN_")}
        run = subprocess.run(["sh", "-c", 'ulimit -n 100; exec "$0" doctor --json', TERN], env=env,
                             capture_output=True, text=True, check=False)
        files = next(check for check in json.loads(run.stdout) if check["subject"] == "open files")
        self.assertEqual(files["health"], "advice")
        self.assertIn("at most 100", files["finding"])

    def test_a_refused_variable_is_a_problem(self):
        for variable in ({"TERN_HOST_THREADS": "4x"}, {"TERN_DEVIC": "host"}):
            run = tern("doctor", **variable)
            self.assertEqual(run.returncode, 1)
            self.assertRegex(run.stdout, rf"problem +settings +.*{next(iter(variable))}")


class Bench(unittest.TestCase):
    def test_every_case_prints_figures_and_those_with_a_baseline_a_ratio(self):
        run = tern("bench", "--json", "--quick")
        self.assertEqual(run.returncode, 0, run.stderr)
        figures = json.loads(run.stdout)
        listed = [line.split()[0] for line in tern("bench", "--list").stdout.splitlines()]
        self.assertEqual(sorted({figure["case"] for figure in figures}), sorted(listed))
        for figure in figures:
            self.assertIsInstance(figure["value"], (int, float), figure["name"])
            self.assertGreaterEqual(figure["value"], 0, figure["name"])
            # What is counted may be nothing, and nothing has no ratio.
            if figure["unit"]:
                if figure["value"] == 0:
                    figure = self.measured_again(figure)
                self.assertEqual("baseline" in figure, "ratio" in figure, figure["name"])

    def measured_again(self, figure):
        """A quick run on a busy machine may measure nothing; a few of them do not."""
        for _ in range(5):
            run = tern("bench", figure["case"], "--json", "--quick")
            self.assertEqual(run.returncode, 0, run.stderr)
            again = next(one for one in json.loads(run.stdout) if one["name"] == figure["name"])
            if again["value"] > 0:
                return again
        self.fail(f"{figure['case']}: {figure['name']} is always 0")

    def test_the_pool_cases_run_on_a_simulated_device_too(self):
        run = tern("bench", "pool", "--json", "--quick", "--device", "sim?check=off")
        self.assertEqual(run.returncode, 0, run.stderr)
        figures = {(figure["case"], figure["name"]): figure for figure in json.loads(run.stdout)}
        self.assertEqual(figures["pool.hit", "driver calls of 1000 pairs (device)"]["value"], 0)
        failures = {name: figure["value"] for (case, name), figure in figures.items()
                    if case == "pool.traces" and name.endswith("failures")}
        self.assertEqual(len(failures), 6)
        for name, count in failures.items():
            self.assertEqual(count, 0, name)

    def test_the_copy_cases_run_on_a_simulated_device_too(self):
        run = tern("bench", "copy", "--json", "--quick", "--device", "sim")
        self.assertEqual(run.returncode, 0, run.stderr)
        cases = {figure["case"] for figure in json.loads(run.stdout)}
        self.assertEqual(cases, {"copy.device", "copy.fill", "copy.managed", "copy.pageable",
                                 "copy.pinned", "copy.slab", "copy.small"})

    def test_the_coherence_cases_run_on_every_kind_of_device(self):
        backends = json.loads(tern("info", "--json").stdout)["backends"]
        available = {backend["name"] for backend in backends if backend["available"]}
        cases = {"coherence.lease", "coherence.managed", "coherence.oversubscribed"}
        for device in ("host", "sim", "opencl:0"):
            if device.split(":")[0] not in available:
                continue
            run = tern("bench", "coherence", "--json", "--quick", "--device", device)
            self.assertEqual(run.returncode, 0, device + ": " + run.stderr)
            figures = json.loads(run.stdout)
            self.assertEqual({figure["case"] for figure in figures}, cases, device)
            copies = [figure for figure in figures if re.search("pageable|page-locked", figure["name"])]
            # Nothing is copied to a device that uses the host's own memory, so there is no rate.
            self.assertEqual(len(copies), 4 if device == "sim" else 0, device)

    def test_a_quick_run_has_no_goals_and_a_whole_one_says_whether_they_are_met(self):
        quick = json.loads(tern("bench", "pool.hit", "--json", "--quick").stdout)
        self.assertFalse([figure for figure in quick if "goal" in figure])
        whole = json.loads(tern("bench", "pool.hit", "--json").stdout)
        goals = [figure for figure in whole if "goal" in figure]
        self.assertTrue(goals)
        for figure in goals:
            self.assertEqual(figure["meets_goal"], figure["value"] <= figure["goal"], figure["name"])
        self.assertRegex(tern("bench", "pool.hit").stdout, r"\n\d+ of \d+ goals are met\.\n$")

    def test_an_absent_device_is_a_sentence(self):
        run = tern("bench", "pool.pair", "--device", "cuda:999")
        self.assertEqual(run.returncode, 2)
        self.assertRegex(run.stderr, ABSENT)

    def test_a_filter_is_a_whole_group_or_the_beginning_of_a_case(self):
        self.assertIn("host.copy", tern("bench", "host", "--list").stdout)
        for filter in ("coherence.over", "coherence.oversubscribed"):
            listed = tern("bench", filter, "--list").stdout.splitlines()
            self.assertEqual([line.split()[0] for line in listed], ["coherence.oversubscribed"])
        run = tern("bench", "hos", "--list")
        self.assertEqual(run.returncode, 2)
        self.assertIn("no case is called 'hos'", run.stderr)


class Tour(unittest.TestCase):
    def test_ends_well(self):
        run = tern("tour")
        self.assertEqual(run.returncode, 0, run.stdout + run.stderr)
        self.assertIn("All checks passed.", run.stdout)

    def test_takes_the_device_it_is_told(self):
        self.assertIn("Opened 'host?threads=1'", tern("tour", "--device", "HOST?threads=1").stdout)
        self.assertIn("Opened 'host?threads=1'", tern("tour", TERN_DEVICE="host?threads=1").stdout)

    def test_ends_well_on_opencl_devices(self):
        for backend in json.loads(tern("info", "--json").stdout)["backends"]:
            for device in backend["devices"] if backend["name"] == "opencl" else []:
                run = tern("tour", "--device", device["spec"])
                self.assertEqual(run.returncode, 0, run.stdout + run.stderr)
                self.assertIn(f"Opened '{device['spec']}'", run.stdout)

    def test_an_absent_device_is_a_sentence(self):
        run = tern("tour", "--device", "cuda:999")
        self.assertEqual(run.returncode, 2)
        self.assertRegex(run.stderr, ABSENT)


class Check(unittest.TestCase):
    def test_the_self_test_finds_every_planted_mistake_and_nothing_else(self):
        run = tern("check", "--self-test", "--programs", "50", "--device-programs", "60",
                   "--seeds", "20")
        self.assertEqual(run.returncode, 0, run.stdout + run.stderr)
        found = [line for line in run.stdout.splitlines() if "first in program" in line]
        of_devices = [line for line in found if " reuse " in line]
        self.assertEqual(len(of_devices), 7 * 2)
        for line in of_devices:
            self.assertRegex(line, r"(hostile|friendly) +reuse +([1-9]\d*) of \2 +first in program")
        self.assertRegex(run.stdout, r"0 findings in 60 device programs: [1-9]\d* with threads, "
                         r"[1-9]\d* with two devices, [1-9]\d* addresses used again, "
                         r"[1-9]\d* waits for timelines")
        of_pools = [line for line in found if " reuse " not in line]
        self.assertEqual(len(of_pools), 6)
        for line in of_pools:
            self.assertRegex(line, r"shrinks to ([1-9]|1[0-2]) steps")
        self.assertIn("0 findings in 50 programs", run.stdout)
        self.assertIn("0 differences in 20 programs x 10 schedules x 1 seeds", run.stdout)
        self.assertRegex(run.stdout, r"other bytes in [1-9]\d*, 0 of them missed, 0 seen by running")

    def test_shows_the_shortest_program_for_a_mistake_and_its_report(self):
        run = tern("check", "--self-test", "--show", "M2")
        self.assertEqual(run.returncode, 0, run.stdout + run.stderr)
        lines = run.stdout.splitlines()
        self.assertEqual(lines[0], "M2 steal without a wait: the shortest of 20 programs")
        self.assertRegex(lines[1], r"^  open a pool of .* for 2 streams$")
        self.assertEqual(len([line for line in lines if " allocate " in line and " now " not in line]), 2)
        self.assertIn("TERN-S103 reuse-before-ready", run.stdout)
        self.assertEqual(tern("check", "--self-test", "--show", "M7").returncode, 2)

    def test_wants_to_be_told_what_to_check(self):
        self.assertEqual(tern("check").returncode, 2)


class CheckFiles(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.path = os.path.join(self.folder.name, "run.trace")

    def make(self):
        """The trace of a program without a mistake."""
        self.assertEqual(tern("tour", "--device", f"sim:0?trace={self.path}").returncode, 0)

    def test_a_clean_trace_ends_with_0(self):
        self.make()
        run = tern("check", self.path)
        self.assertEqual(run.returncode, 0, run.stdout + run.stderr)
        self.assertRegex(run.stdout, r"run\.trace: \d+ records, \d+ actors, 0 findings, complete\n$")
        self.assertEqual(run.stderr, "")

    @unittest.skipUnless(SEEDS, "the traces to fuzz with are not built")
    def test_a_trace_with_findings_ends_with_1_and_says_them(self):
        subprocess.run([SEEDS, self.folder.name], check=True)
        paths = [os.path.join(self.folder.name, name) for name in ("seed-0", "seed-4")]
        run = tern("check", *paths)
        self.assertEqual(run.returncode, 1, run.stderr)
        self.assertRegex(run.stdout, r"seed-0: 0 records, 0 actors, 0 findings, complete\n")
        self.assertRegex(run.stdout, r"TERN-S\d+ .*\n  what    ")
        count = int(re.search(r"seed-4: \d+ records, \d+ actors, (\d+) findings, complete\n$", run.stdout)[1])
        self.assertEqual(len(re.findall(r"^TERN-S", run.stdout, re.M)), count)
        lines = [json.loads(line) for line in tern("check", "--json", paths[1]).stdout.splitlines()]
        self.assertEqual(len(lines), count + 1)
        self.assertEqual(lines[-1]["findings"], count)
        self.assertRegex(lines[0]["code"], "TERN-S")
        gap = tern("check", os.path.join(self.folder.name, "seed-1"))
        self.assertIn("1 gap (1200 records lost", gap.stdout)

    def test_recordings_of_any_device_are_checked(self):
        for device in ("host", "sim"):
            with self.subTest(device):
                run = tern("tour", "--device", device, TERN_TRACE=self.path)
                self.assertEqual(run.returncode, 0, run.stderr)
                run = tern("check", self.path)
                self.assertEqual(run.returncode, 0, run.stdout + run.stderr)
                self.assertRegex(run.stdout, r"run\.trace: a recording of \d+ events, \d+ streams, "
                                 r"[1-9]\d* uses of memory checked, 0 findings\n")
                self.assertIn("A recording does not show what the host reads and writes", run.stdout)
                summary = json.loads(tern("check", "--json", self.path).stdout)
                self.assertEqual(summary["findings"], 0)
                self.assertGreater(summary["checked"], 0)
                self.assertTrue(summary["complete"])

    def test_a_recording_that_was_cut_is_said_to_be(self):
        tern("tour", "--device", "host", TERN_TRACE=self.path)
        data = pathlib.Path(self.path).read_bytes()
        pathlib.Path(self.path).write_bytes(data[:200_000])
        self.assertIn("The end of the file is missing", tern("check", self.path).stdout)
        self.assertFalse(json.loads(tern("check", "--json", self.path).stdout)["complete"])
        self.assertIn("The end of the file is missing", tern("report", self.path).stdout)
        self.assertFalse(json.loads(tern("report", "--json", self.path).stdout)["is_complete"])

    def test_a_damaged_recording_ends_with_2(self):
        tern("tour", "--device", "host", TERN_TRACE=self.path)
        data = bytearray(pathlib.Path(self.path).read_bytes())
        data[8] = 99  # the version
        pathlib.Path(self.path).write_bytes(data)
        run = tern("check", self.path)
        self.assertEqual(run.returncode, 2)
        self.assertIn("version", run.stderr)

    def test_runs_are_repeatable_to_the_byte(self):
        self.make()
        first = pathlib.Path(self.path).read_bytes()
        os.remove(self.path)
        self.make()
        self.assertEqual(first, pathlib.Path(self.path).read_bytes())

    def damaged(self, change):
        self.make()
        data = bytearray(pathlib.Path(self.path).read_bytes())
        return bytes(change(data))

    def check_bytes(self, data, *arguments):
        return subprocess.run([TERN, "check", *arguments, "-"], input=data, capture_output=True, check=False)

    def test_reads_standard_input(self):
        run = self.check_bytes(self.damaged(lambda data: data))
        self.assertEqual(run.returncode, 0, run.stderr)
        self.assertIn(b"standard input: ", run.stdout)

    def test_a_trace_without_its_end_is_checked_and_called_truncated(self):
        run = self.check_bytes(self.damaged(lambda data: data[:-1]))
        self.assertEqual(run.returncode, 0, run.stderr)
        self.assertRegex(run.stdout, rb"truncated after record \d+: the writer was interrupted")

    def test_what_cannot_be_read_ends_with_2_and_a_sentence(self):
        def flip(data):
            data[200] ^= 1
            return data
        run = self.check_bytes(self.damaged(flip))
        self.assertEqual(run.returncode, 2)
        self.assertRegex(run.stderr, rb"^tern: standard input cannot be read: the checksum of a chunk at byte "
                                     rb"\d+ is \d+ and must be the checksum of its bytes\. .*\n$")
        run = self.check_bytes(b"hello")
        self.assertEqual(run.returncode, 2)
        self.assertIn(b"the mark of a trace at byte 0 is 104", run.stderr)
        run = tern("check", "/nowhere.trace", self.path)
        self.assertEqual(run.returncode, 2)
        self.assertIn("tern: file '/nowhere.trace': open failed: No such file or directory.", run.stderr)
        self.assertIn("run.trace: ", run.stdout, "the others are checked all the same")

    def test_json_has_an_object_a_line(self):
        self.make()
        run = tern("check", "--json", self.path)
        lines = [json.loads(line) for line in run.stdout.splitlines()]
        self.assertEqual(len(lines), 1)
        self.assertEqual(lines[0]["findings"], 0)
        self.assertTrue(lines[0]["complete"])
        self.assertEqual(lines[0]["gaps"], 0)
        broken = json.loads(self.check_bytes(b"hello", "--json").stdout)
        self.assertIn("cannot be read", broken["error"])

    def test_help_says_how_to_make_one_and_what_the_exit_codes_are(self):
        text = tern("check", "--help").stdout
        for word in ("TERN_SIM_TRACE=run.trace", "Exit status: 0", "--trusted", "--json"):
            self.assertIn(word, text)

    def test_takes_traces_or_the_self_test(self):
        self.assertEqual(tern("check", "--self-test", "x.trace").returncode, 2)


class InFolder(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.trace = str(self.folder / "run.trace")


class Report(InFolder):
    def record(self, setting):
        run = tern("tour", "--device", "sim", TERN_TRACE=setting)
        self.assertEqual(run.returncode, 0, run.stderr)

    def test_shows_what_a_program_did(self):
        self.record(self.trace)
        run = tern("report", self.trace)
        self.assertEqual(run.returncode, 0, run.stderr)
        self.assertRegex(run.stdout, r"run\.trace: \d+ events in .*, recorded by tern \(process \d+\)\n")
        self.assertRegex(run.stdout, r"sim:0: at .* were live of .* held: ")
        self.assertIn("tour.cpp:", run.stdout)
        self.assertIn("Every block of the recording was freed.", run.stdout)
        self.assertNotIn("note:", run.stdout)

    def test_writes_a_page(self):
        self.record(self.trace)
        page = self.folder / "run.html"
        run = tern("report", self.trace, "-o", str(page))
        self.assertEqual(run.returncode, 0, run.stderr)
        text = page.read_text()
        self.assertIn("<title>", text)
        self.assertNotRegex(text, r"@(STYLE|SCRIPT|FACTS|COLUMNS|BEFORE_FACTS|COMPARISON)@")
        facts = json.loads(text.split('id="facts">')[1].split("</script>")[0])
        self.assertEqual(facts["title"], "run.trace")
        self.assertEqual(facts["columns"]["block_begin"]["count"], facts["columns"]["block_life"]["count"])

    def test_prints_json(self):
        log = self.write_log(self.folder / "log.csv", [1024, 2048])
        run = tern("report", "--json", log)
        self.assertEqual(run.returncode, 0, run.stderr)
        report = json.loads(run.stdout)
        self.assertEqual(report["title"], "log.csv")
        self.assertEqual([one["peak_live_bytes"] for one in report["devices"]], [3072])
        self.assertEqual([one["live_at_end_bytes"] for one in report["resources"]], [3072])
        self.assertIn("--json", tern("report", "--help").stdout)
        for more in ([log], ["-o", str(self.folder / "page.html")]):
            run = tern("report", "--json", log, *more)
            self.assertEqual(run.returncode, 2)
            self.assertIn("excludes --json", run.stderr)
            self.assertEqual(run.stdout, "")

    def write_log(self, path, rows):
        """Writes an RMM log, which takes less time than a recording."""
        path.parent.mkdir(exist_ok=True)
        path.write_text("Thread,Time,Action,Pointer,Size,Stream\n" + "".join(
            f"1,10:00:00.{at:06},allocate,0x{at + 1:x}000,{size},0x0\n" for at, size in enumerate(rows)))
        return str(path)

    def test_compares_two_recordings(self):
        before = self.write_log(self.folder / "before.csv", [1024, 2048])
        after = self.write_log(self.folder / "after.csv", [1024, 2048, 4096])
        run = tern("report", before, after)
        self.assertEqual(run.returncode, 0, run.stderr)
        self.assertTrue(run.stdout.startswith("before.csv before, after.csv after\n"), run.stdout)
        self.assertIn("grew from 3.0 KiB to 7.0 KiB (+4.0 KiB, +133.3 %)", run.stdout)
        self.assertIn("Live at the peaks, by line: no difference.",
                      tern("report", before, before).stdout)
        page = self.folder / "difference.html"
        run = tern("report", before, after, "-o", str(page))
        self.assertEqual(run.returncode, 0, run.stderr)
        text = page.read_text()
        for name, title in (("facts-before", "before.csv"), ("facts", "after.csv")):
            facts = json.loads(text.split(f'id="{name}">')[1].split("</script>")[0])
            self.assertEqual(facts["title"], title)
        for pair in ((before, str(self.folder / "none")), (str(self.folder / "none"), after)):
            run = tern("report", *pair)
            self.assertEqual(run.returncode, 2)
            self.assertIn("open failed", run.stderr)
        for recording in (before, after):
            run = tern("report", before, after, "-o", recording)
            self.assertEqual(run.returncode, 2)
            self.assertIn("is an input file", run.stderr)

    def test_two_recordings_with_one_name_are_named_by_their_paths(self):
        old = self.write_log(self.folder / "old" / "log.csv", [1])
        new = self.write_log(self.folder / "new" / "log.csv", [1])
        self.assertTrue(tern("report", old, new).stdout.startswith(f"{old} before, {new} after\n"))

    def test_top_shows_what_a_recording_leaves_live(self):
        self.record(self.trace)
        run = tern("top", self.trace, "--once")
        self.assertEqual(run.returncode, 0, run.stderr)
        self.assertRegex(run.stdout, r"tern \(process \d+\): \d+ events in .*, recording stopped\n")
        self.assertRegex(run.stdout, r"sim:0 +0 B +\d")

    def test_top_shows_the_budgets_of_a_recording(self):
        made = Recording()
        made.use_budget(1, "process", 0, 4 * MIB)
        made.use_budget(2, "process/task", 3 * MIB, (1 << 64) - 1)
        made.use_budget(3, "process/ended", 1 * MIB, 2 * MIB)
        made.use_budget(3, "process/ended", 0, 2 * MIB, is_end=1)
        made.use_budget(1, "process", 3 * MIB, 4 * MIB)
        trace = made.write(self.folder / "budgets.trace")
        run = tern("top", trace, "--once")
        self.assertEqual(run.returncode, 0, run.stderr)
        self.assertRegex(run.stdout, r"\nbudget +used +limit +share\n"
                                     r"process +3\.0 MiB +4\.0 MiB +75 %\n"
                                     r"process/task +3\.0 MiB +none *\n")
        self.assertNotIn("ended", run.stdout)
        self.assertEqual(tern("top", trace).stdout, run.stdout, "what is no terminal gets one table")
        run = tern("report", trace)
        self.assertRegex(run.stdout, r"3\.0 MiB +4\.0 MiB +75 % +\d+ ns +0 +0  process\n")
        self.assertRegex(run.stdout, r"1\.0 MiB +2\.0 MiB +50 % .* process/ended\n")

    def test_reports_name_the_budget_that_a_program_filled(self):
        self.record(self.trace)
        self.assertRegex(tern("report", self.trace).stdout,
                         r"Budgets at their highest use:\n +used .*\n(.*\n)*? +\d.* [1-9]\d*  \S+\n")

    def test_top_says_why_a_process_cannot_be_shown(self):
        for process, why in ((str(os.getpid()), "does not record to a file"), ("999999999", "there is no process"),
                             ("no.trace", "no.trace"), (__file__, "not a memory trace")):
            run = tern("top", process)
            self.assertEqual(run.returncode, 2)
            self.assertIn(why, run.stderr)

    def test_top_says_why_a_shared_budget_cannot_be_shown(self):
        for name, words in (("no-such-budget", "there is no shared budget 'no-such-budget'"),
                            ("a/b", "'a/b' cannot be the name of a shared budget")):
            run = tern("top", "--shared", name)
            self.assertEqual(run.returncode, 2)
            self.assertEqual(run.stdout, "")
            self.assertIn(f"tern top: {words}", run.stderr)
        self.assertIn("what to show is missing", tern("top").stderr)
        self.assertEqual(tern("top", "1", "--shared", "a").returncode, 2)

    def test_a_ring_is_written_when_a_request_is_refused(self):
        last = self.folder / "last.trace"
        self.record(f"ring:1MiB:{last}")
        self.assertTrue(last.exists(), "the tour fills a budget")
        run = tern("report", str(last))
        self.assertEqual(run.returncode, 0, run.stderr)
        self.assertIn("out_of_budget", run.stdout)

    def test_two_processes_with_one_path_write_two_files(self):
        first = subprocess.Popen([TERN, "tour", "--device", "sim"], stdout=subprocess.DEVNULL,
                                 env=os.environ | {"TERN_TRACE": self.trace})
        while not pathlib.Path(self.trace).exists() and first.poll() is None:
            time.sleep(0.001)
        self.record(self.trace)
        first.wait()
        for path in self.folder.iterdir():
            self.assertEqual(tern("report", str(path)).returncode, 0, path)

    def test_what_cannot_be_read_or_written_is_a_sentence(self):
        for path, sentence in ((self.folder / "none", "open failed"), (pathlib.Path(TERN), "is not a memory trace")):
            run = tern("report", str(path))
            self.assertEqual(run.returncode, 2)
            self.assertRegex(run.stderr, rf"^tern report: .*{sentence}.*\n$")
        self.record(self.trace)
        run = tern("report", self.trace, "-o", self.trace)
        self.assertEqual(run.returncode, 2)
        self.assertIn("is an input file", run.stderr)
        with open("/dev/full", "w") as full:
            run = subprocess.run([TERN, "report", self.trace], stdout=full, stderr=subprocess.PIPE, text=True,
                                 check=False)
        self.assertEqual(run.returncode, 2)
        self.assertIn("could not be written", run.stderr)
        run = tern("report", self.trace, "-o", str(self.folder / "no" / "page.html"))
        self.assertEqual(run.returncode, 2)
        self.assertIn("could not be written", run.stderr)

    def test_a_setting_that_is_no_ring_is_a_sentence(self):
        run = tern("tour", "--device", "sim", TERN_TRACE="ring:much")
        self.assertEqual(run.returncode, 2)
        self.assertIn("TERN_TRACE='ring:much' is not accepted", run.stderr)
        run = tern("tour", "--device", "sim", TERN_TRACE=str(self.folder / "no" / "run.trace"))
        self.assertEqual(run.returncode, 2)
        self.assertIn("open failed", run.stderr)


class Recording:
    """Writes a recording from the description of its format, without the library."""

    ALLOCATE, FREE = 1, 2

    def __init__(self):
        self.events, self.definitions = [], b""
        self.define(3, 1, "sim:0")
        self.define(4, 1, "pool", detail=3, device=1)

    def define(self, kind, number, text, detail=0, line=0, device=0):
        data = text.encode()
        self.definitions += struct.pack("<BBHIII", kind, detail, len(data), number, line, device)
        self.definitions += data + bytes(-len(data) % 8)

    def add(self, kind, block, size, stream=1, time=None, tag=0, site=0):
        time = len(self.events) + 1 if time is None else time
        self.events.append(struct.pack("<QQQQQQIIIHBB", time, stream, block, block << 40 & (1 << 64) - 1, size,
                                       size, site, 1, 1, tag, kind, 0))

    def use_budget(self, number, path, used, limit, is_end=0):
        self.define(0, number, path)
        self.events.append(struct.pack("<QQQQQQIIIHBB", len(self.events) + 1, 0, number, limit, used, number, 0, 0,
                                       0, 0, 24, is_end))

    def write(self, path):
        slabs, per_slab = [], 4095
        for first in range(0, len(self.events), per_slab):
            some = self.events[first:first + per_slab]
            slabs.append(struct.pack("<IIQQ40x", 1, 1, first, len(some)) + b"".join(some))
        slabs.append(struct.pack("<IIQQ40x", 2, 0, 0, len(self.definitions)) + self.definitions)
        header = struct.pack("<8sIIIIQQIIQ256s", b"\xABTERNMT\n", 1, 4096, 262144, 64, 0, 0, 7, 1, 0, b"made")
        path.write_bytes(header.ljust(4096, b"\0") + b"".join(slab.ljust(262144, b"\0") for slab in slabs))
        return str(path)


MIB = 1 << 20


def checkerboard():
    """Leaves free blocks of 32 MiB, no two of them adjacent, and then allocates blocks of 48 MiB."""
    made = Recording()
    for block in range(60):
        made.add(Recording.ALLOCATE, block + 1, 32 * MIB)
    for block in range(1, 60, 2):
        made.add(Recording.FREE, block + 1, 32 * MIB)
    for block in range(15):
        made.add(Recording.ALLOCATE, block + 101, 48 * MIB)
    return made


class Replay(InFolder):
    def replayed(self, *arguments, **environment):
        run = tern("replay", *arguments, "--json", **environment)
        self.assertEqual(run.returncode, 0, run.stderr)
        return json.loads(run.stdout)

    def test_compares_resources(self):
        path = checkerboard().write(self.folder / "run.trace")
        run = tern("replay", path, "--device", "sim")
        self.assertEqual(run.returncode, 0, run.stderr)
        self.assertIn("run.trace: 75 allocations and 30 frees on 1 streams of sim:0, at most 1.9 GiB live",
                      run.stdout)
        for name in ("pool", "async", "driver"):
            self.assertRegex(run.stdout, rf"(?m)^  {name} .* 0$")
        # No one asked for progress: standard error is not a terminal.
        self.assertEqual(run.stderr, "")
        replay = self.replayed(path, "--device", "sim")
        self.assertEqual(replay["peak_live_bytes"], 60 * 32 * MIB)
        self.assertEqual(replay["ranking"]["peak_held_bytes"][-1], "pool")
        for result in replay["results"]:
            self.assertEqual(result["peak_live_bytes"], 60 * 32 * MIB)
            self.assertEqual(result["refusals"], 0)
            self.assertEqual(len(result["passes"]), 3)

    def test_ranks_generated_programs_the_same_on_sim_and_behind_the_fake_driver(self):
        for sample in ("training", "kv_cache", "tables", "checkerboard"):
            on_sim, on_cuda = (self.replayed("--sample", sample, "--device", device, "--no-recommend", "--passes", "2")
                               for device in ("sim?check=off", "cuda:0?driver=sim"))
            self.assertEqual(on_sim["ranking"], on_cuda["ranking"], sample)
            for result in on_sim["results"] + on_cuda["results"]:
                self.assertEqual(result["refusals"], 0, result)
                self.assertEqual(result["peak_live_bytes"], on_sim["peak_live_bytes"], result)
            self.assertNotIn("recommendations", on_sim)

    def test_what_it_recommends_is_better_when_measured_again(self):
        path = checkerboard().write(self.folder / "run.trace")
        first = self.replayed(path, "--device", "sim?check=off", "--resource", "pool")
        self.assertTrue(first["recommendations"])
        for one in first["recommendations"]:
            again = self.replayed(path, "--device", "sim?check=off", "--resource", "pool," + one["resource"],
                                  "--no-recommend")
            base, better = again["results"]
            for gain in one["gains"]:
                figure = gain["figure"]
                if figure == "returned_bytes":
                    self.assertGreater(better[figure], base[figure], one["text"])
                else:
                    self.assertLess(better[figure], base[figure], one["text"])

    def test_replays_what_a_program_and_rmm_recorded(self):
        path = str(self.folder / "run.trace")
        self.assertEqual(tern("tour", "--device", "sim", TERN_TRACE=path).returncode, 0)
        self.assertGreater(self.replayed(path, "--device", "host", "--resource", "pool")["allocations"], 10)
        log = self.folder / "rmm.csv"
        log.write_text("Thread,Time,Action,Pointer,Size,Stream\n1,10:00:00.000001,allocate,0x10,256,0x1\n"
                       "1,10:00:00.000002,allocate,0x20,512,0x2\n1,10:00:00.000003,free,0x10,256,0x1\n")
        replay = self.replayed(str(log), "--device", "sim")
        self.assertEqual((replay["allocations"], replay["frees"], replay["streams"]), (2, 1, 2))
        self.assertEqual(replay["peak_live_bytes"], 768)

    def test_shows_progress_on_a_terminal_after_two_seconds(self):
        reader, writer = pty.openpty()
        command = [TERN, "replay", "--sample", "kv_cache", "--device", "sim?check=off", "--resource", "async"]
        subprocess.run([*command, "--passes", "1", "--no-recommend"], stdout=subprocess.DEVNULL, stderr=writer,
                       check=True)
        began = time.monotonic()
        with subprocess.Popen([*command, "--passes", "1000"], stdout=subprocess.DEVNULL, stderr=writer) as running:
            self.assertIn(b"async, pass ", os.read(reader, 1 << 10))
            self.assertGreaterEqual(time.monotonic() - began, 2)
            running.kill()
        os.close(writer)
        os.close(reader)

    def test_a_device_that_is_too_small_is_refused_with_numbers(self):
        path = checkerboard().write(self.folder / "run.trace")
        run = tern("replay", path, "--device", "sim?memory=1GiB")
        self.assertEqual((run.returncode, run.stdout), (2, ""))
        self.assertRegex(run.stderr, r"^tern replay: the recording needs 1\.9 GiB at once, but 'sim:0\?memory=1GiB' has "
                                     r"1\.0 GiB free of 1\.0 GiB\. .*memory=3GiB'\.\n$")

    def test_hostile_recordings_are_sentences_or_figures(self):
        huge = Recording()
        huge.add(Recording.ALLOCATE, 1, (1 << 64) - 1)
        run = tern("replay", huge.write(self.folder / "huge"), "--device", "sim")
        self.assertEqual(run.returncode, 2)
        self.assertIn("16 EiB", run.stderr)
        large = Recording()
        large.add(Recording.ALLOCATE, 1, 1 << 62)
        run = tern("replay", large.write(self.folder / "large"), "--device", "sim")
        self.assertEqual(run.returncode, 2)
        self.assertIn("needs 4.0 EiB at once", run.stderr)
        run = tern("replay", Recording().write(self.folder / "empty"), "--device", "sim")
        self.assertEqual(run.returncode, 2)
        self.assertIn("has no allocations", run.stderr)
        wrong = Recording()
        wrong.define(3, 1, "\x1b[31mred")
        wrong.add(Recording.FREE, 7, 4096)             # of an unknown block
        wrong.add(Recording.ALLOCATE, 1, 1000)
        wrong.add(Recording.ALLOCATE, 2, 0)            # nothing
        wrong.add(Recording.FREE, 1, 1000)
        wrong.add(Recording.FREE, 1, 1000)             # again
        wrong.add(Recording.ALLOCATE, 3, 500, time=0)  # before everything
        for stream in range(5000):
            wrong.add(Recording.ALLOCATE, stream + 10, 256, stream=stream << 20)
        replay = self.replayed(wrong.write(self.folder / "wrong"), "--device", "sim")
        self.assertEqual(replay["peak_live_bytes"], 500 + 5000 * 256)
        self.assertEqual([result["refusals"] for result in replay["results"]], [0, 0, 0])
        self.assertEqual(len(replay["notes"]), 3, replay["notes"])
        self.assertNotIn("\x1b", tern("replay", str(self.folder / "wrong"), "--device", "sim").stdout)

    def test_wrong_use_is_a_sentence(self):
        path = checkerboard().write(self.folder / "run.trace")
        for arguments, said in (([path, "--resource", "pool:strict"], "'pool:strict' is not a valid resource"),
                                ([path, "--of", "cuda:7"], "no allocations in 'cuda:7'. It has allocations in: sim:0."),
                                ([], "specify either a recording or --sample"),
                                ([path, "--sample", "tables"], "specify either a recording or --sample"),
                                (["--sample", "x"], "there is no sample 'x'"),
                                ([str(self.folder / "none")], "open failed"),
                                ([TERN], "is not a memory trace")):
            run = tern("replay", *arguments)
            self.assertEqual(run.returncode, 2, arguments)
            self.assertEqual(run.stdout, "", arguments)
            self.assertIn(said, run.stderr)
        run = tern("replay", path, "--device", "sim", "--resource", "pool:initial=200GiB")
        self.assertEqual(run.returncode, 2, "no resource could be replayed on")
        self.assertIn("not available", run.stdout)


class Rehearse(InFolder):
    def rehearsed(self, *arguments, status=0, **environment):
        run = tern("rehearse", "--json", *arguments, **environment)
        self.assertEqual(run.returncode, status, run.stderr)
        return json.loads(run.stdout)

    def test_a_program_has_the_peak_of_its_run_on_sim(self):
        for name, memory in (("05_memory", "64MiB"), ("06_buffers", "141GiB"), ("07_files", "141GiB"),
                             ("14_oversubscribed", "141GiB")):
            program = f"{EXAMPLES}/{name}"
            trace = str(self.folder / name)
            subprocess.run([program], env=os.environ | {"TERN_TRACE": trace}, stdout=subprocess.DEVNULL, check=True)
            real = self.rehearsed(trace, "--memory", memory)
            again = self.rehearsed("--memory", memory, "--keep-contents", "--", program)
            self.assertEqual(again["program"], {"status": 0, "signal": 0})
            self.assertEqual([(one["device"], one["live_bytes"], one["tags"]) for one in real["peaks"]],
                             [(one["device"], one["live_bytes"], one["tags"]) for one in again["peaks"]], name)
            self.assertEqual(real["transfers"], again["transfers"], name)
            self.assertEqual(real["evictions"], again["evictions"], name)
            self.assertEqual(real["budgets"]["refusals"], again["budgets"]["refusals"], name)
            self.assertEqual([one["smallest_bytes"] for one in real["devices"]],
                             [one["smallest_bytes"] for one in again["devices"]], name)

    def test_a_program_that_opens_a_gpu_is_rehearsed(self):
        kept = self.folder / "kept.trace"
        run = tern("rehearse", "--trace", str(kept), "--memory", "1GiB", "--", TERN, "tour", "--device", "cuda:0")
        self.assertEqual(run.returncode, 1, "the tour finds zeros where it wrote something")
        self.assertIn("Rehearsed on simulated devices with 1.0 GiB; the program exited with status 1.", run.stdout)
        self.assertRegex(run.stdout, r"(?m)^cuda:0: at .* were live of .* held: ")
        self.assertRegex(run.stdout, r"(?m)^  cuda:0: [\d.]+ MiB \(\d+ MiB\); ")
        self.assertEqual(run.stderr.count("keeps no contents"), 1, run.stderr)
        self.assertEqual(tern("report", str(kept)).returncode, 0)
        subprocess.run([os.path.join(EXAMPLES, "14_oversubscribed"), "host"], check=True, capture_output=True,
                       env=os.environ | {"TERN_TRACE": str(kept)})
        run = tern("rehearse", str(kept))
        self.assertEqual(run.returncode, 2)
        self.assertIn("Memory of the host is not rehearsed", run.stderr)
        run = tern("rehearse", "--trace", str(kept), "--", "true")
        self.assertEqual(run.returncode, 2, "an older file is no recording of this program")
        self.assertIn("recorded nothing", run.stderr)
        run = tern("rehearse", "--trace", str(self.folder / "no" / "a.trace"), "--", TERN, "tour", "--device", "cuda:0")
        self.assertEqual(run.returncode, 2)
        self.assertIn("copy failed", run.stderr)
        run = tern("rehearse", "--keep-contents", "--", TERN, "tour", "--device", "cuda:0")
        self.assertEqual(run.returncode, 0, run.stderr)

    def test_the_smallest_device_fits_and_two_mebibytes_less_do_not(self):
        made = checkerboard()
        made.define(2, 9, "blocks")
        made.define(1, 4, "board.cpp", line=17)
        made.add(Recording.ALLOCATE, 500, 700 * MIB, tag=9, site=4)
        path = made.write(self.folder / "run.trace")
        found = self.rehearsed(path)["devices"][0]
        smallest = found["smallest_bytes"]
        self.assertEqual(self.rehearsed(path, "--memory", str(smallest))["first_refused"], None)
        refused = self.rehearsed(path, "--memory", str(smallest - 2 * MIB), status=1)["first_refused"]
        self.assertEqual(refused["device"], "sim:0")
        self.assertGreater(refused["live_bytes"], 1 << 30)
        if found["refused_by_one_granule_less"]:
            self.assertEqual(refused, found["refused_by_one_granule_less"])
        self.assertEqual(found["smallest_bytes_with_limit"], (30 * 32 + 15 * 48 + 700) * MIB)
        run = tern("rehearse", path, "--memory", "2.5GiB")
        self.assertEqual(run.returncode, 1)
        self.assertIn("First refused request: 700.0 MiB (tag 'blocks') at board.cpp:17 on sim:0 failed with "
                      "out_of_memory. 1.6 GiB were live",
                      run.stdout)
        self.assertRegex(run.stdout, r"with 2\.0 MiB less, the device refuses 700\.0 MiB \(tag 'blocks'\) at "
                                     r"board\.cpp:17\. A pool with a limit needs only 2\.3 GiB \(2380 MiB\)")

    def test_a_program_that_does_not_fit_says_what_is_refused_first(self):
        program = f"{EXAMPLES}/05_memory"
        rehearsal = self.rehearsed("--memory", "32MiB", "--", program)
        self.assertEqual(rehearsal["refusals"], 1)
        self.assertEqual(rehearsal["first_refused"]["bytes"], 60 * MIB)
        self.assertRegex(rehearsal["first_refused"]["site"], r"05_memory\.cpp:\d+$")
        self.assertEqual(rehearsal["budgets"]["refusals"], 1)

    def test_programs_of_a_script_and_their_options_are_rehearsed(self):
        script = f"echo shown; {EXAMPLES}/06_buffers > /dev/null; {EXAMPLES}/05_memory > /dev/null; exit 3"
        run = tern("rehearse", "--", "sh", "-c", script, "--memory", "x")
        self.assertEqual(run.returncode, 1)
        self.assertTrue(run.stdout.startswith("shown\nRehearsed on simulated devices with 141.0 GiB; the program "
                                              "exited with status 3.\n  note: 2 processes recorded."), run.stdout)
        self.assertIn("72.0 MiB were live", run.stdout)

    def test_more_devices(self):
        run = tern("rehearse", "--devices", "2", "--", TERN, "info", "--json")
        backends = json.JSONDecoder().raw_decode(run.stdout)[0]["backends"]
        self.assertEqual([device["spec"] for device in backends[0]["devices"]], ["cuda:0", "cuda:1"])
        self.assertEqual(run.returncode, 0, "it allocates nothing")

    def test_hostile_recordings_are_sentences_or_figures(self):
        for size, said in (((1 << 64) - 1, "16 EiB"), (1 << 62, None)):
            made = Recording()
            made.add(Recording.ALLOCATE, 1, size)
            run = tern("rehearse", made.write(self.folder / "huge"))
            self.assertEqual(run.returncode, 2 if said else 1, run.stdout)
            self.assertIn(said or "not even a device with 16 TiB", run.stderr + run.stdout)

    def test_wrong_use_is_a_sentence(self):
        path = checkerboard().write(self.folder / "run.trace")
        for arguments, said in (([], "specify either a recording, or a program after `--`"),
                                ([path, "--", "true"], "specify either a recording, or a program after `--`"),
                                ([path, "--memory", "1MiB"], "--memory=1MiB is not accepted"),
                                (["--", "/no/such/program"], "program '/no/such/program' could not be started: No "),
                                (["--", "true"], "'true' exited with status 0 and recorded nothing"),
                                ([TERN], "is not a memory trace")):
            run = tern("rehearse", *arguments)
            self.assertEqual((run.returncode, run.stdout), (2, ""), arguments)
            self.assertIn(said, run.stderr)


class Convert(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        cls.recording = pathlib.Path(folder.name) / "run.trace"
        tern("tour", "--device", "sim", TERN_TRACE=str(cls.recording))

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.trace = self.folder / "run.trace"
        self.trace.write_bytes(self.recording.read_bytes())

    def refused(self, *arguments, sentence):
        """The command fails with one sentence, and leaves no other files."""
        before = sorted(path.name for path in self.folder.iterdir())
        run = tern("convert", *map(str, arguments))
        self.assertEqual(run.returncode, 2, run.stdout)
        self.assertEqual(run.stdout, "")
        self.assertRegex(run.stderr, rf"(?s)^tern convert: .*{sentence}.*\n$")
        self.assertEqual(sorted(path.name for path in self.folder.iterdir()), before)

    def test_the_suffix_or_the_option_decides(self):
        begins = {"trace": b"\xabTERNMT\n", "pytorch": b"\x80\x02}", "perfetto": b"\x0a", "rmm": b"Thread,Time,"}
        for name, form in (("a.trace", "trace"), ("a.pickle", "pytorch"), ("a.pkl", "pytorch"),
                           ("a.pftrace", "perfetto"), ("a.perfetto-trace", "perfetto"), ("a.csv", "rmm")):
            out = self.folder / name
            run = tern("convert", str(self.trace), str(out))
            self.assertEqual(run.returncode, 0, run.stderr)
            self.assertRegex(run.stdout, r": [0-9.]+ .?i?B, from \d+ events\.\n")
            self.assertTrue(out.read_bytes().startswith(begins[form]), name)
        for form, beginning in begins.items():
            out = self.folder / "any.thing"
            run = tern("convert", "--format", form, str(self.trace), str(out))
            self.assertEqual(run.returncode, 0, run.stderr)
            self.assertTrue(out.read_bytes().startswith(beginning), form)
        self.assertEqual([path.name for path in self.folder.iterdir() if path.name.endswith(".part")], [])

    def test_a_trace_of_a_trace_has_the_same_report(self):
        copy = self.folder / "copy" / "run.trace"
        copy.parent.mkdir()
        self.assertEqual(tern("convert", str(self.trace), str(copy)).returncode, 0)
        self.assertEqual(tern("report", str(copy)).stdout, tern("report", str(self.trace)).stdout)

    def test_every_format_can_be_reported(self):
        peak = re.search(r"sim:0: at .*?, (\S+ \S+) were live", tern("report", str(self.trace)).stdout)[1]
        for name in ("run.pickle", "run.csv"):
            out = str(self.folder / name)
            self.assertEqual(tern("convert", str(self.trace), out).returncode, 0)
            run = tern("report", out)
            self.assertEqual(run.returncode, 0, run.stderr)
            self.assertIn(f", {peak} were live", run.stdout)
            page = self.folder / "page.html"
            self.assertEqual(tern("report", out, "-o", str(page)).returncode, 0)
            self.assertIn("<title>", page.read_text())

    def test_what_is_wrong_is_a_sentence(self):
        self.refused(self.trace, self.folder / "run.json", sentence=r"is not known\. Use --format trace, pytorch")
        self.refused(self.trace, self.trace, sentence="is the input file")
        link = self.folder / "link.trace"
        link.symlink_to(self.trace)
        self.refused(self.trace, link, sentence="is the input file")
        self.refused(self.folder / "none", self.folder / "a.csv", sentence="open failed")
        self.refused(TERN, self.folder / "a.csv", sentence=r"is not a memory trace\. Tern reads")
        self.refused(self.trace, self.folder / "no" / "a.csv", sentence="open failed")
        self.refused(self.trace, "/dev/null", "--format", "rmm", sentence="Write to a regular file")
        self.refused(self.trace, self.folder, "--format", "rmm", sentence="Write to a regular file")
        evil = self.folder / "evil.pickle"
        evil.write_bytes(b"\x80\x04cos\nsystem\n(U\x04truetR.")
        self.refused(evil, self.folder / "a.csv", sentence="contains the pickle opcode GLOBAL at byte 2")
        evil.write_bytes(b"\x80\x04]")
        self.refused(evil, self.folder / "a.csv", sentence="unexpected end of the file at byte 3")
        self.assertEqual(tern("convert", "--format", "pdf", str(self.trace), "a").returncode, 2)

    def test_a_full_disk_leaves_the_old_file(self):
        out = self.folder / "a.trace"
        out.write_text("old")
        run = subprocess.run(["bash", "-c", 'ulimit -f 100; exec "$@"', "bash", TERN, "convert", str(self.trace), str(out)],
                             capture_output=True, text=True, check=False)
        self.assertEqual(run.returncode, 2, run.stderr)
        self.assertIn("write failed: File too large", run.stderr)
        self.assertEqual(out.read_text(), "old")
        self.assertEqual(sorted(path.name for path in self.folder.iterdir()), ["a.trace", "run.trace"])


class Manners(unittest.TestCase):
    def test_wrong_use_exits_with_2(self):
        for arguments in ([], ["fly"], ["info", "--fast"], ["bench", "--seconds", "0"]):
            self.assertEqual(tern(*arguments).returncode, 2, arguments)

    def test_help_names_every_command(self):
        run = tern("--help")
        self.assertEqual(run.returncode, 0)
        for command in ("info", "doctor", "bench", "check", "report", "convert", "top", "replay", "rehearse", "tour"):
            self.assertIn(command, run.stdout)
            self.assertEqual(tern(command, "--help").returncode, 0)

    def test_a_missing_or_unknown_command_is_answered_with_those_there_are(self):
        for arguments, said in (([], "tern: a command is needed. The commands are:\n"),
                                (["nonsense"], "tern: there is no command 'nonsense'. The commands are:\n")):
            run = tern(*arguments)
            self.assertEqual(run.returncode, 2)
            self.assertEqual(run.stdout, "")
            self.assertTrue(run.stderr.startswith(said), run.stderr)
            for command in ("info", "doctor", "bench", "check", "report", "convert", "top", "replay", "rehearse", "tour"):
                self.assertRegex(run.stderr, rf"(?m)^  {command} +[A-Z]")

    def test_colour_is_for_terminals_only(self):
        self.assertNotIn("\033", tern("info").stdout)
        reader, writer = pty.openpty()
        subprocess.run([TERN, "info"], env=dict(os.environ, TERM="xterm", NO_COLOR=""), stdout=writer,
                       check=True)
        os.close(writer)
        self.assertIn(b"\033[", os.read(reader, 4096))
        os.close(reader)


if __name__ == "__main__":
    unittest.main()
