"""The report page in a browser: a trace with 1 M events, hostile strings, and an empty trace."""

import json
import os
import pathlib
import random
import shutil
import statistics
import subprocess
import tempfile
import unittest

import sample_report

try:
    from selenium import webdriver
    from selenium.webdriver.common.action_chains import ActionChains
    from selenium.webdriver.common.by import By
    from selenium.webdriver.common.keys import Keys
    from selenium.webdriver.common.actions.wheel_input import ScrollOrigin
except ImportError:
    webdriver = None

BLOCKS = 500_000
MAX_FILE_BYTES = 12_000_000
MAX_LOAD_MS = 2000
MAX_REDRAW_MS = 50
SLOWNESS = float(os.environ.get("TERN_TEST_SLOWNESS", "1"))
SEED = 20250314
GPU = 1  # index of the device in the samples


def browser():
    options = webdriver.ChromeOptions()
    options.binary_location = shutil.which("chromium")
    for argument in ("--headless=new", "--no-sandbox", "--disable-dev-shm-usage",
                     "--force-device-scale-factor=1", "--window-size=1200,1000"):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    service = webdriver.ChromeService(shutil.which("chromedriver"))
    return webdriver.Chrome(options=options, service=service)


def setUpModule():
    if webdriver is None:
        raise unittest.SkipTest("the Python package 'selenium' is not installed")
    for name in ("chromium", "chromedriver"):
        if shutil.which(name) is None:
            raise unittest.SkipTest(f"'{name}' is not installed")


class Page(unittest.TestCase):
    """One page in one browser for all tests of a class."""

    before_load = None  # a script that runs before those of the page

    @classmethod
    def sample_of_class(cls):
        raise unittest.SkipTest("a base class")

    @classmethod
    def page_of_class(cls):
        return sample_report.page(cls.sample)

    @classmethod
    def setUpClass(cls):
        cls.sample = cls.sample_of_class()
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        cls.path = pathlib.Path(folder.name) / "report.html"
        cls.path.write_text(cls.page_of_class())
        cls.driver = browser()
        cls.addClassCleanup(cls.driver.quit)
        if cls.before_load:
            cls.driver.execute_cdp_cmd("Page.addScriptToEvaluateOnNewDocument",
                                       {"source": cls.before_load})
        cls.driver.get(cls.path.as_uri())
        cls.driver.execute_async_script("ternReport.ready.finally(arguments[0])")
        cls.load_ms = cls.js("return ternReport.loadMilliseconds")
        # The log is read once: reading removes it.
        cls.load_log = cls.driver.get_log("browser")

    @classmethod
    def js(cls, script, *arguments):
        return cls.driver.execute_script(script, *arguments)

    def setUp(self):
        self.js("ternReport.resetView(); ternReport.setLine(null)")

    def tearDown(self):
        self.assertEqual(self.driver.get_log("browser"), [])

    def text_of(self, identifier):
        return self.js("return document.getElementById(arguments[0]).textContent", identifier)

    def view(self):
        return self.js("return ternReport.view()")

    def move_to(self, identifier, x, y):
        """Moves the pointer to a point of a canvas, in CSS pixels from its upper left corner."""
        canvas = self.driver.find_element(By.ID, identifier)
        self.js("arguments[0].scrollIntoView({block: 'center'})", canvas)
        size = self.js("return [arguments[0].clientWidth, arguments[0].clientHeight]", canvas)
        return ActionChains(self.driver, duration=20).move_to_element_with_offset(
            canvas, round(x - size[0] / 2), round(y - size[1] / 2))

    def hover(self, identifier, x, y):
        self.move_to(identifier, x, y).perform()
        return self.driver.find_element(By.ID, "tooltip").text

    def check_live_bytes(self, count):
        chosen = random.Random(SEED)
        duration = self.sample.facts["duration"]
        times = [chosen.randrange(duration) for _ in range(count)]
        # The moments of an allocation and of a free, where an error of one event shows.
        for block in chosen.sample(self.sample.blocks, 4):
            times += [block[0], block[0] - 1]
            times += [] if block[1] is None else [block[0] + block[1], block[0] + block[1] - 1]
        for time in times:
            for device in (GPU, None):
                shown = self.js("return ternReport.liveAt(arguments[0], arguments[1])", time,
                                -1 if device is None else device)
                self.assertEqual(shown, self.sample.live_at(time, device), f"at {time} ns")

    def expected_facts(self, index):
        facts = self.sample.facts
        row = dict(zip(sample_report.BLOCK_COLUMNS, self.sample.blocks[index]))
        is_freed = row["life"] is not None
        return {
            "index": index, "bytes": row["bytes"], "address": row["address"],
            "tag": facts["tags"][row["tag"]], "stream": facts["streams"][row["stream"]]["name"],
            "site": facts["sites"][row["site"]], "begin": row["begin"], "life": row["life"],
            "freeSite": facts["sites"][row["free_site"]] if is_freed else None,
            "freeStream": facts["streams"][row["free_stream"]]["name"] if is_freed else None,
            "resource": facts["resources"][row["resource"]]["name"],
            "device": facts["devices"][facts["resources"][row["resource"]]["device"]]["name"]}


class LargePage(Page):
    @classmethod
    def sample_of_class(cls):
        return sample_report.build(BLOCKS, layers=24)

    def test_is_small_and_loads_fast(self):
        self.assertGreaterEqual(self.sample.facts["events"], 1_000_000)
        self.assertLessEqual(self.path.stat().st_size, MAX_FILE_BYTES)
        self.assertGreater(self.load_ms, 0)
        self.assertLessEqual(self.load_ms, MAX_LOAD_MS * SLOWNESS)

    def test_writes_nothing_to_the_console(self):
        self.assertEqual(self.load_log, [])

    def test_requests_nothing_but_itself(self):
        self.assertEqual(self.js("return performance.getEntriesByType('resource').length"), 0)
        log = " ".join(entry["message"] for entry in self.driver.get_log("performance")
                       if '"Network.requestWillBeSent"' in entry["message"])
        self.assertIn(self.path.as_uri(), log)
        for scheme in ("http:", "https:", "ws:", "wss:"):
            self.assertNotIn(f'"url":"{scheme}', log)

    def test_redraws_fast(self):
        duration = self.sample.facts["duration"]
        for begin, end in ((0, 1), (0.2, 0.9), (0.5, 0.6), (0.9, 0.901)):
            took = [self.js("ternReport.setView(arguments[0], arguments[1]);"
                            "return ternReport.lastRedrawMilliseconds",
                            begin * duration, end * duration) for _ in range(9)]
            # The median, because other programs on the machine interrupt a redraw now and then.
            self.assertLessEqual(statistics.median(took), MAX_REDRAW_MS * SLOWNESS,
                                 f"{took} ms from {begin} to {end}")
            self.assertGreater(min(took), 0)

    def test_shows_live_bytes_to_the_byte(self):
        self.check_live_bytes(8)

    def test_names_the_block_under_the_pointer(self):
        chosen = random.Random(SEED)
        for index in chosen.sample(range(len(self.sample.blocks)), 40):
            block = self.sample.blocks[index]
            device = self.sample.facts["resources"][block[9]]["device"]
            life = (self.sample.facts["duration"] - block[0]) if block[1] is None else block[1]
            found = self.js(
                "const [index, time, address, device] = arguments;"
                "ternReport.zoomToBlock(index);"
                "const point = ternReport.mapPoint(time, address, device);"
                "return ternReport.blockAt(point.x, point.y)",
                index, block[0] + life / 2, block[3] + block[2] // 2, device)
            self.assertEqual(found, self.expected_facts(index))

    def test_every_colored_pixel_names_a_block_that_is_there(self):
        chosen = random.Random(SEED)
        self.js("ternReport.setDevice(arguments[0])", GPU)
        duration = self.sample.facts["duration"]
        for view in ((0, duration), (duration // 2, duration // 2 + duration // 300)):
            self.js("ternReport.setView(arguments[0], arguments[1])", *view)
            for _ in range(12):
                self.check_pixel(view, chosen.randrange(110, 1000), chosen.randrange(6, 370))

    def check_pixel(self, view, x, y):
        """Compares the block at a pixel with all blocks that touch the time of the pixel."""
        left = self.js("return ternReport.mapPoint(arguments[0], arguments[2], 1).x - "
                       "ternReport.mapPoint(arguments[1], arguments[2], 1).x",
                       view[1], view[0], self.sample.blocks[0][3])
        origin = self.js("return ternReport.mapPoint(arguments[0], arguments[1], 1).x", view[0],
                         self.sample.blocks[0][3])
        begin = view[0] + (x - origin) / left * (view[1] - view[0])
        end = begin + (view[1] - view[0]) / left
        resources = (sample_report.POOL, sample_report.WORKSPACE)
        near = [index for index, block in enumerate(self.sample.blocks)
                if block[9] in resources and block[0] < end
                and (block[1] is None or block[0] + block[1] > begin)]
        rows = self.js(
            "return arguments[0].map(([low, high]) => ["
            "ternReport.mapPoint(0, high, 1).y, ternReport.mapPoint(0, low, 1).y])",
            [[self.sample.blocks[i][3], self.sample.blocks[i][3] + self.sample.blocks[i][2]]
             for i in near])
        touching = {index for index, (top, bottom) in zip(near, rows)
                    if top < y + 1 + 1e-6 and bottom > y - 1e-6}
        found = self.js("return ternReport.blockAt(arguments[0], arguments[1])", x, y)
        if found is None:
            # A block that ends at the edge of the pixel may count for either side.
            inside = {index for index, (top, bottom) in zip(near, rows)
                      if top < y + 1 - 1e-6 and bottom > y + 1e-6}
            self.assertEqual(inside, set(), f"no block at {x}, {y}")
        else:
            self.assertIn(found["index"], touching, f"at {x}, {y}")

    def test_shows_the_facts_of_a_block_next_to_the_pointer(self):
        index = next(i for i, block in enumerate(self.sample.blocks) if block[4] == 5)
        self.js("ternReport.zoomToBlock(arguments[0])", index)
        block = self.sample.blocks[index]
        point = self.js("return ternReport.mapPoint(arguments[0], arguments[1], 1)",
                        block[0] + block[1] / 2, block[3] + block[2] // 2)
        text = self.hover("map", point["x"], point["y"])
        for part in (sample_report.TAGS[5], sample_report.SITES[4], sample_report.SITES[6],
                     f"{block[2]:,} bytes", "compute"):
            self.assertIn(part, text)

    def test_shows_when_a_block_was_never_freed(self):
        index = next(i for i, block in enumerate(self.sample.blocks) if block[1] is None)
        self.js("ternReport.zoomToBlock(arguments[0])", index)
        block = self.sample.blocks[index]
        point = self.js("return ternReport.mapPoint(arguments[0], arguments[1], 1)",
                        (block[0] + self.sample.facts["duration"]) / 2, block[3] + block[2] // 2)
        self.assertIn("not freed", self.hover("map", point["x"], point["y"]))


class SmallPage(Page):
    @classmethod
    def sample_of_class(cls):
        return sample_report.build(4500)

    def span(self):
        view = self.view()
        return view["end"] - view["begin"]

    def test_draws_every_mode_and_theme(self):
        images = set()
        for theme in ("light", "dark"):
            self.js("ternReport.setTheme(arguments[0])", theme)
            for device in (-1, 0, 1):
                for mode in ("tag", "device", "stream", "state"):
                    self.js("ternReport.setDevice(arguments[0]); ternReport.setMode(arguments[1])",
                            device, mode)
                    images.add(self.js("return document.getElementById('memory').toDataURL()"))
        # Two themes, three choices of a device and four modes: no picture repeats another.
        self.assertEqual(len(images), 2 * 3 * 4)
        self.js("ternReport.setTheme('light'); ternReport.setDevice(1);"
                "ternReport.setMode('tag')")

    def test_pending_memory_is_a_state(self):
        self.js("ternReport.setDevice(1); ternReport.setMode('state')")
        self.assertIn("pending: freed, not passed yet", self.text_of("memory-legend"))
        self.move_to("memory", 600, 150).perform()
        self.assertIn("pending", self.text_of("tooltip"))
        color = self.js("return getComputedStyle(document.documentElement)"
                        ".getPropertyValue('--layer-pending').trim()")
        wanted = [int(color[i:i + 2], 16) for i in (1, 3, 5)]
        painted = self.js("""
            const canvas = document.getElementById('memory');
            const {data} = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height);
            let count = 0;
            for (let i = 0; i < data.length; i += 4) {
              if (arguments[0].every((value, part) => data[i + part] === value)) ++count;
            }
            return count;""", wanted)
        self.assertGreater(painted, 100)
        self.js("ternReport.setMode('tag')")

    def test_switches_with_the_buttons(self):
        before = self.js("return document.getElementById('memory').toDataURL()")
        self.driver.find_element(By.CSS_SELECTOR, "#modes button[value=stream]").click()
        self.js("ternReport.redraw()")
        self.assertNotEqual(self.js("return document.getElementById('memory').toDataURL()"), before)
        self.driver.find_element(By.CSS_SELECTOR, "#modes button[value=tag]").click()
        background = "return getComputedStyle(document.documentElement).backgroundColor"
        light = self.js(background)
        self.driver.find_element(By.ID, "theme").click()
        self.assertNotEqual(self.js(background), light)
        self.driver.find_element(By.ID, "theme").click()
        self.assertEqual(self.js(background), light)

    def test_zooms_and_pans_with_the_keyboard(self):
        whole = self.span()
        for identifier in ("memory", "overview", "map", "streams"):
            canvas = self.driver.find_element(By.ID, identifier)
            self.assertEqual(canvas.get_attribute("tabindex"), "0")
            canvas.send_keys("+")
            self.assertAlmostEqual(self.span(), 0.6 * whole, delta=whole / 1000)
            begin = self.view()["begin"]
            canvas.send_keys(Keys.ARROW_RIGHT)
            self.assertGreater(self.view()["begin"], begin)
            canvas.send_keys(Keys.ARROW_LEFT)
            self.assertAlmostEqual(self.view()["begin"], begin, delta=whole / 1000)
            canvas.send_keys("-")
            self.assertAlmostEqual(self.span(), whole, delta=whole / 1000)
            for key in ("0", Keys.HOME):
                canvas.send_keys(Keys.ARROW_UP)
                self.assertLess(self.span(), 0.7 * whole)
                canvas.send_keys(key)
                self.assertEqual(self.span(), whole)

    def test_zooms_with_the_pointer(self):
        whole = self.span()
        self.move_to("memory", 400, 150).click_and_hold().move_by_offset(200, 0).release().perform()
        plot = self.js("return document.getElementById('memory').clientWidth") - 106 - 14
        self.assertAlmostEqual(self.span(), whole * 200 / plot, delta=whole / 50)
        begin = self.view()["begin"]
        self.move_to("memory", 600, 150).key_down(Keys.SHIFT).click_and_hold().move_by_offset(
            -100, 0).release().key_up(Keys.SHIFT).perform()
        self.assertGreater(self.view()["begin"], begin)
        self.move_to("memory", 400, 150).double_click().perform()
        self.assertEqual(self.span(), whole)
        canvas = self.driver.find_element(By.ID, "memory")
        canvas.click()
        ActionChains(self.driver).scroll_from_origin(
            ScrollOrigin.from_element(canvas), 0, -100).perform()
        self.assertLess(self.span(), 0.8 * whole)

    def test_names_copies_waits_launches_and_ranges(self):
        time, took, size, *_ = self.sample.copies[0]
        self.js("ternReport.setView(0, arguments[0])", time + 2 * took)
        x = self.js("return ternReport.mapPoint(arguments[0], arguments[1], 1).x",
                    time + took / 2, self.sample.blocks[0][3])
        texts = [self.hover("streams", x, y) for y in range(2, 200, 4)]
        copies = [text for text in texts if text.startswith("Copy to the device")]
        self.assertTrue(copies)
        for part in (f"{size / 2**20:.1f} MiB", f"{size / took:.1f} GB/s", "Loader::next"):
            self.assertIn(part, copies[0])
        self.assertTrue(any(text.startswith("step") for text in texts))
        for rows, stream, heading in (
                (self.sample.launches, None, "Launch of "),
                (self.sample.waits, sample_report.HOST, "host waits for compute"),
                (self.sample.waits, sample_report.COMPUTE, "compute waits for copy")):
            row = next(row for row in rows if stream is None or row[2] == stream)
            self.js("ternReport.setView(arguments[0] - 20000, arguments[0] + 20000)", row[0])
            x = self.js("return ternReport.mapPoint(arguments[0], arguments[1], 1).x",
                        row[0], self.sample.blocks[0][3])
            texts = [self.hover("streams", x, y) for y in range(60, 170, 4)]
            self.assertTrue(any(text.startswith(heading) for text in texts), (heading, texts))

    def test_shows_the_peak_the_refusal_the_leak_and_the_copies(self):
        facts = self.sample.facts
        self.assertIn(facts["peaks"][0]["text"], self.text_of("peaks"))
        self.assertIn("mlp activations", self.text_of("at-peak"))
        self.assertIn("src/mlp.cpp:77 in Mlp::forward", self.text_of("at-peak"))
        for part in ("1.5 GiB", "evaluation", "src/evaluate.cpp:51", "out of memory",
                     "2.0 GiB", "in segments", "optimizer state 192.0 MiB"):
            self.assertIn(part, self.text_of("refusals"))
        self.assertIn("src/metrics.cpp:29 in Metrics::record", self.text_of("leaks"))
        for part in ("to the device", "to the host", "GB/s"):
            self.assertIn(part, self.text_of("transfers"))

    def test_sorts_a_table_by_a_column(self):
        def blocks():
            return self.js("return [...document.querySelectorAll('#at-peak table')[0].rows]"
                           ".slice(1).map((row) => Number(row.cells[3].textContent))")
        button = self.driver.find_elements(By.CSS_SELECTOR, "#at-peak th button")[3]
        self.js("arguments[0].click()", button)
        self.assertEqual(blocks(), sorted(blocks(), reverse=True))
        self.js("arguments[0].click()", button)
        self.assertEqual(blocks(), sorted(blocks()))

    def test_selects_a_block_in_the_table(self):
        self.driver.execute_async_script("setTimeout(arguments[0], 300)")
        button = self.driver.find_element(By.CSS_SELECTOR, "#block-list td button")
        self.js("arguments[0].click()", button)
        self.assertIn("src/model.cpp:88 in Model::Model", self.text_of("block"))
        self.assertIn("167,772,160 bytes", self.text_of("block"))

    def test_shows_what_stands_out(self):
        self.assertIn("Keeps growing. cuda:0: memory that src/metrics.cpp:29 allocates keeps",
                      self.text_of("findings"))
        self.assertIn("What to do: Free the blocks.", self.text_of("findings"))
        self.js("ternReport.setDevice(0); ternReport.setMode('state'); ternReport.setView(0, 1000)")
        self.js("document.querySelector('#findings button').click()")
        self.assertEqual(self.js("return document.getElementById('device').value"), "1")
        self.assertEqual(self.view(), {"begin": 0, "end": self.sample.facts["duration"]})
        self.assertEqual(self.js("return ternReport.shown()"),
                         {"mode": "tag", "device": 1, "line": {"tag": 8, "site": 9}})
        self.assertIn("src/metrics.cpp:29 in Metrics::record (metrics)",
                      self.text_of("memory-legend"))

    def test_shows_the_worst_moment_of_a_finding(self):
        self.js("document.querySelectorAll('#findings button')[1].click()")
        self.assertEqual(self.js("return ternReport.shown()"),
                         {"mode": "state", "device": 1, "line": {"tag": 7, "site": 8}})
        self.check_moment(2_000_000)
        self.js("document.querySelector('#peaks button').click()")
        self.assertEqual(self.js("return ternReport.shown()"),
                         {"mode": "state", "device": 1, "line": None})
        self.check_moment(3_000_000)

    def check_moment(self, time):
        view = self.view()
        self.assertLess(view["begin"], time)
        self.assertGreater(view["end"], time)
        self.assertLess(self.span(), self.sample.facts["duration"] / 5)

    def image_of(self, identifier):
        self.js("ternReport.redraw()")
        return self.js("return document.getElementById(arguments[0]).toDataURL()", identifier)

    def listed(self, column):
        """The numbers of a column of the list of blocks, once it is up to date."""
        self.driver.execute_async_script("setTimeout(arguments[0], 300)")
        return self.js("return [...document.querySelectorAll('#block-list tbody tr')].map((row) =>"
                       "row.cells[arguments[0]].textContent)", column)

    def test_highlights_and_lists_the_blocks_of_a_line(self):
        self.js("ternReport.setMode('tag')")
        before = [self.image_of(identifier) for identifier in ("memory", "map")]
        facts = self.sample.facts
        row = self.js("const row = document.querySelectorAll('#leaks tbody tr')[0];"
                      "row.querySelector('button.line').click(); return row.textContent")
        self.assertIn("src/metrics.cpp:29", row)
        for identifier, image in zip(("memory", "map"), before):
            self.assertNotEqual(self.image_of(identifier), image)
        self.assertIn("src/metrics.cpp:29 in Metrics::record (metrics)", self.text_of("picked"))
        self.assertEqual(set(self.listed(1)), {"metrics"})
        blocks = [block for block in self.sample.blocks if block[4] == 8]
        self.assertIn(f"{len(blocks)} blocks in view, the oldest first", self.text_of("block-list"))
        first = self.js("return Number(document.querySelector('#block-list tbody tr').dataset.block)")
        self.assertEqual(self.sample.blocks[first], blocks[0])
        # The line has a layer of its own at the bottom of the chart.
        live = sum(block[2] for block in blocks
                   if block[0] <= facts["peaks"][0]["time"] and block[1] is None)
        shown = self.js("return document.querySelector('#memory-legend .value').textContent")
        self.assertEqual(shown, f"{live / sample_report.MIB:.1f} MiB")
        self.js("document.getElementById('picked-none').click()")
        self.assertIsNone(self.js("return ternReport.shown().line"))
        self.assertEqual([self.image_of(identifier) for identifier in ("memory", "map")], before)

    def test_highlights_a_tag_of_the_legend(self):
        self.js("ternReport.setMode('tag')")
        button = "[...document.querySelectorAll('#map-legend button')].find((one) =>" \
                 "one.textContent === 'batch').click()"
        self.js(button)
        self.assertEqual(self.js("return ternReport.shown().line"), {"tag": 7, "site": -1})
        self.assertEqual(set(self.listed(1)), {"batch"})
        self.js(button)
        self.assertIsNone(self.js("return ternReport.shown().line"))
        self.assertGreater(len(set(self.listed(1))), 1)

    def test_draws_host_functions(self):
        (time, took, *_), *_, (last, *_) = self.sample.calls
        for begin, at, over in ((time, time + took / 2, f"{(time + took) / 1e6:.2f}"[:4]),
                                (last, last + took, "no")):
            self.js("ternReport.setView(arguments[0] - 500000, arguments[0] + 1500000)", begin)
            x = self.js("return ternReport.mapPoint(arguments[0], arguments[1], 1).x", at,
                        self.sample.blocks[0][3])
            texts = [self.hover("streams", x, y) for y in range(60, 200, 6)]
            found = [text for text in texts if text.startswith("Host function")]
            self.assertTrue(found, texts)
            self.assertIn("src/checkpoint.cpp:90", found[0])
            self.assertIn(over, found[0].split("Seen to be over")[1])
        self.assertIn("host function", self.text_of("streams-legend"))

    def test_tables_do_not_break_words(self):
        for width in (1200, 900):
            self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", {
                "width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False})
            broken = self.js("""
                const broken = [];
                for (const cell of document.querySelectorAll('#refusals td.words:not(.site)')) {
                  const texts = document.createTreeWalker(cell, NodeFilter.SHOW_TEXT);
                  while (texts.nextNode()) {
                    for (const word of texts.currentNode.data.matchAll(/[a-z_]+/g)) {
                      const range = document.createRange();
                      range.setStart(texts.currentNode, word.index);
                      range.setEnd(texts.currentNode, word.index + word[0].length);
                      if (range.getClientRects().length > 1) broken.push(word[0]);
                    }
                  }
                }
                return broken;""")
            self.assertEqual(broken, [])
        self.driver.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})

    def test_goes_to_the_moment_of_a_row(self):
        button = self.driver.find_element(By.CSS_SELECTOR, "#blocked td button:not(.line)")
        self.js("arguments[0].click()", button)
        self.check_moment(2_000_000)

    def test_shows_growth_blocked_memory_waits_and_moves(self):
        for identifier, parts in (
                ("growing", ("src/metrics.cpp:29", "metrics", "8.0 MiB", "40")),
                ("blocked", ("copy", "src/train.cpp:140", "48.0 MiB", "64.0 MiB",
                             "src/loader.cpp:63")),
                ("waits", ("host", "compute", "copy", "on the device", "src/checkpoint.cpp:90",
                           "5 ms")),
                ("budgets", ("process/task", "48.0 MiB", "64.0 MiB", "75 %", "17", "23", "none",
                             "6 ms")),
                ("moves", ("device read", "42.0 MiB", "src/evaluate.cpp:51", "30.0 MiB")),
                ("refusals", ("96.0 MiB", "Largest free range"))):
            for part in parts:
                self.assertIn(part, self.text_of(identifier))
        floors = self.js("return document.querySelector('.sparkline').getAttribute('aria-label')")
        self.assertTrue(floors.startswith("0 B, 1.0 MiB, 2.0 MiB"), floors)

    def test_every_canvas_has_a_text_alternative(self):
        for canvas in self.driver.find_elements(By.TAG_NAME, "canvas"):
            self.assertGreater(len(canvas.get_attribute("aria-label") or ""), 20)

    def test_fits_narrow_windows(self):
        for width in (1200, 800):
            self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", {
                "width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False})
            self.assertLessEqual(self.js("return document.documentElement.scrollWidth"), width)
        self.driver.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


class HostilePage(Page):
    # Browsers without Uint8Array.fromBase64 decode in a loop.
    before_load = "delete Uint8Array.fromBase64"

    @classmethod
    def sample_of_class(cls):
        return sample_report.build(4500, hostile=True)

    def test_shows_hostile_strings_as_text(self):
        self.assertEqual(self.load_log, [])
        self.assertIsNone(self.js("return window.attacked ?? null"))
        self.assertEqual(self.js("return document.querySelectorAll('img').length"), 0)
        self.assertEqual(self.js("return document.querySelectorAll('script').length"), 6)
        self.assertEqual(self.text_of("title"), sample_report.HOSTILE_SITE)
        self.assertIn(sample_report.HOSTILE_NOTE, self.text_of("notes"))
        for identifier in ("budgets", "at-peak", "map-legend", "memory-legend", "peaks", "findings"):
            self.assertIn(sample_report.HOSTILE_TAG, self.text_of(identifier))
        self.assertIn(sample_report.HOSTILE_SITE, self.text_of("at-peak"))

    def test_shows_hostile_strings_as_text_next_to_the_pointer(self):
        index = next(i for i, block in enumerate(self.sample.blocks) if block[4] == 5)
        self.js("ternReport.zoomToBlock(arguments[0])", index)
        block = self.sample.blocks[index]
        point = self.js("return ternReport.mapPoint(arguments[0], arguments[1], 1)",
                        block[0] + block[1] / 2, block[3] + block[2] // 2)
        text = self.hover("map", point["x"], point["y"])
        self.assertIn(sample_report.HOSTILE_TAG, text)
        self.assertIn(sample_report.HOSTILE_SITE, text)
        self.assertIsNone(self.js("return window.attacked ?? null"))

    def test_decodes_without_the_decoder_of_the_browser(self):
        self.assertEqual(self.js("return typeof Uint8Array.fromBase64"), "undefined")
        self.check_live_bytes(20)

    def test_forbids_requests(self):
        refused = self.driver.execute_async_script(
            "const done = arguments[0];"
            "document.addEventListener('securitypolicyviolation',"
            "                          (event) => done(event.effectiveDirective));"
            "fetch('https://example.invalid/').catch(() => setTimeout(() => done('none'), 500));")
        self.assertEqual(refused, "connect-src")
        self.driver.get_log("browser")  # The browser reports the refused request there.

    def test_warns_about_lost_events(self):
        self.assertIn("bad", self.js(
            "return [...document.querySelectorAll('#figures div')]"
            ".find((node) => node.textContent.includes('Lost events')).className"))


class EmptyPage(Page):
    @classmethod
    def sample_of_class(cls):
        return sample_report.empty()

    def test_shows_a_sentence_for_each_empty_table(self):
        self.assertEqual(self.load_log, [])
        for identifier, sentence in (("at-peak", "No memory was allocated."),
                                     ("refusals", "No request was refused."),
                                     ("leaks", "Every block was freed."),
                                     ("transfers", "Nothing was copied.")):
            self.assertEqual(self.text_of(identifier), sentence)
        self.assertTrue(self.text_of("findings").startswith("Nothing stands out"))
        self.assertEqual(self.text_of("waits"), "Nobody waited.")
        for identifier in ("growing", "blocked", "budgets", "moves", "comparison"):
            self.assertIsNone(self.js("return document.getElementById(arguments[0]).offsetParent",
                                      identifier))
        for mode in ("tag", "device", "stream", "state"):
            self.js("ternReport.setMode(arguments[0])", mode)


class ComparisonPage(Page):
    """Two traces. The second one is hostile, and twice as long."""

    @classmethod
    def sample_of_class(cls):
        return sample_report.build(6000, hostile=True)

    @classmethod
    def page_of_class(cls):
        cls.before = sample_report.build(3000, seed=5)
        cls.comparison = sample_report.compare(cls.before, cls.sample)
        return sample_report.page(cls.sample, cls.before, cls.comparison)

    def setUp(self):
        super().setUp()
        self.js("ternReport.openTrace(1)")

    def press(self, selector):
        self.js("document.querySelector(arguments[0]).click(); ternReport.redraw()", selector)

    def highest(self, sample, begin, end):
        """The highest live bytes in a part of a trace, and at its beginning."""
        times = [time for block in sample.blocks
                 for time in (block[0], block[0] + (block[1] or 0)) if begin <= time < end]
        return max(sample.live_at(time, GPU) for time in [begin, *times])

    def check_curves(self, end_of):
        width = self.js("return document.getElementById('compare').clientWidth") - 106 - 14
        for share in (0.05, 0.31, 0.5, 0.77):
            shown = self.js("return ternReport.compareAt(arguments[0])", share)["bytes"]
            column = int(share * width)
            for at, sample in enumerate((self.before, self.sample)):
                end = end_of(sample)
                begin = column / width * end
                # A time at the edge of a pixel may count for either side.
                expected = {self.highest(sample, begin + early, begin + end / width + late)
                            for early in (-1, 0, 1) for late in (-1, 0, 1)}
                self.assertIn(shown[at], expected, f"at {share} of trace {at}")

    def test_draws_both_curves_over_time(self):
        self.press("#compare-axis button[value=time]")
        longest = max(sample.facts["duration"] for sample in (self.before, self.sample))
        self.check_curves(lambda _: longest)

    def test_draws_both_curves_over_the_share_of_the_duration(self):
        self.press("#compare-axis button[value=share]")
        self.check_curves(lambda sample: sample.facts["duration"])

    def test_draws_held_memory(self):
        live = self.js("return document.getElementById('compare').toDataURL()")
        self.press("#compare-memory button[value=held]")
        self.assertNotEqual(self.js("return document.getElementById('compare').toDataURL()"), live)
        self.press("#compare-memory button[value=live]")

    def test_lists_the_differences(self):
        self.assertIn(self.comparison["devices"][0]["text"], self.text_of("differences"))
        text = self.text_of("compare-tables")
        for part in ("peak live", "+128.0 MiB", "\u221264.0 MiB", "2.0 MiB",
                     sample_report.HOSTILE_TAG, "src/new.cpp:9, before src/new.cpp:7"):
            self.assertIn(part, text)

    def test_opens_each_trace(self):
        for index, sample in ((0, self.before), (1, self.sample)):
            self.press(f"#traces button[value='{index}']")
            self.assertIn(f"{len(sample.blocks):,}", self.text_of("figures"))
            self.assertEqual(self.span(), sample.facts["duration"])
            for time in (sample.facts["duration"] // 3, sample.facts["duration"] // 2):
                live = self.js("return ternReport.liveAt(arguments[0], arguments[1])", time, GPU)
                self.assertEqual(live, sample.live_at(time, GPU))

    def span(self):
        view = self.view()
        return view["end"] - view["begin"]

    def test_names_both_values_under_the_pointer_and_with_the_keyboard(self):
        text = self.hover("compare", 500, 100)
        self.assertIn(self.before.facts["title"], text)
        self.assertIn("difference", text)
        canvas = self.driver.find_element(By.ID, "compare")
        canvas.send_keys(Keys.ARROW_RIGHT)
        self.assertIn("difference", self.text_of("compare-at"))

    def test_shows_hostile_strings_as_text(self):
        self.assertEqual(self.load_log, [])
        self.assertIsNone(self.js("return window.attacked ?? null"))
        self.assertEqual(self.js("return document.querySelectorAll('img').length"), 0)
        self.assertEqual(self.js("return document.querySelectorAll('script').length"), 6)


class LargeComparison(Page):
    """The limits of a page with one trace hold for two traces with as many events together."""

    @classmethod
    def sample_of_class(cls):
        return sample_report.build(BLOCKS // 2, layers=24)

    @classmethod
    def page_of_class(cls):
        before = sample_report.build(BLOCKS // 2, layers=24, seed=5)
        return sample_report.page(cls.sample, before, sample_report.compare(before, cls.sample))

    def test_is_small_and_fast(self):
        self.assertLessEqual(self.path.stat().st_size, MAX_FILE_BYTES)
        self.assertLessEqual(self.load_ms, MAX_LOAD_MS * SLOWNESS)
        took = [self.js("ternReport.redraw(); return ternReport.lastRedrawMilliseconds")
                for _ in range(9)]
        self.assertLessEqual(statistics.median(took), MAX_REDRAW_MS * SLOWNESS, took)


class Recorded(unittest.TestCase):
    """A page of `tern report` about a run of `tern tour`."""

    def test_shows_what_the_recording_has(self):
        tool = os.environ.get("TERN_TOOL")
        if tool is None:
            self.skipTest("TERN_TOOL does not name the tern command")
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        trace, page = (pathlib.Path(folder.name) / name for name in ("run.trace", "run.html"))
        subprocess.run([tool, "tour", "--device", "sim"], env=os.environ | {"TERN_TRACE": str(trace)},
                       stdout=subprocess.DEVNULL, check=True)
        subprocess.run([tool, "report", trace, "-o", page], stdout=subprocess.DEVNULL, check=True)
        facts = json.loads(page.read_text().split('id="facts">')[1].split("</script>")[0])
        driver = browser()
        self.addCleanup(driver.quit)
        driver.get(page.as_uri())
        driver.execute_async_script("ternReport.ready.finally(arguments[0])")
        self.assertEqual(driver.get_log("browser"), [])
        self.assertGreater(len(facts["peaks"]), 0)
        for peak in facts["peaks"]:
            live = driver.execute_script("return ternReport.liveAt(arguments[0], arguments[1])",
                                         peak["time"], peak["device"])
            self.assertEqual(live, peak["live"])
            self.assertIn(peak["text"], driver.find_element(By.TAG_NAME, "body").text)
        subprocess.run([tool, "report", trace, trace, "-o", page], stdout=subprocess.DEVNULL,
                       check=True)
        driver.get(page.as_uri())
        driver.execute_async_script("ternReport.ready.finally(arguments[0])")
        self.assertEqual(driver.get_log("browser"), [])
        tables = driver.find_element(By.ID, "compare-tables").text
        self.assertIn("Live at the peaks, by line: no difference.", tables)


if __name__ == "__main__":
    unittest.main()
