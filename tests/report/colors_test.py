"""The colors of the report page: contrast, and differences that color-blind people see too."""

import itertools
import pathlib
import re
import unittest

STYLE = pathlib.Path(__file__).resolve().parents[2] / "tools/report/page/page.css"
MIN_TEXT_CONTRAST = 4.5
MIN_GRAPHIC_CONTRAST = 3
MIN_DIFFERENCE = 20  # CIE 1976; people see a difference of about 2 between large areas
EDGE_SHADE = 0.5     # as in state.js
# What a person without one kind of cones sees, as a matrix of linear RGB (Machado et al., 2009).
SIGHTS = {
    "all cones": ((1, 0, 0), (0, 1, 0), (0, 0, 1)),
    "no red": ((0.152286, 1.052583, -0.204868), (0.114503, 0.786281, 0.099216),
               (-0.003882, -0.048116, 1.051998)),
    "no green": ((0.367322, 0.860646, -0.227968), (0.280085, 0.672501, 0.047413),
                 (-0.011820, 0.042940, 0.968881)),
    "no blue": ((1.255528, -0.076749, -0.178779), (-0.078411, 0.930809, 0.147602),
                (0.004733, 0.691367, 0.303900))}


def themes():
    light, dark = STYLE.read_text().split(':root[data-theme="dark"]')
    return {name: dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6});", part))
            for name, part in (("light", light), ("dark", dark.split("}")[0]))}


def linear(color, shade=1):
    def channel(at):
        value = shade * int(color[at:at + 2], 16) / 255
        return value / 12.92 if value <= 0.04045 else ((value + 0.055) / 1.055) ** 2.4
    return [channel(at) for at in (1, 3, 5)]


def luminance(rgb):
    return sum(weight * value for weight, value in zip((0.2126, 0.7152, 0.0722), rgb))


def contrast(one, other):
    dark, light = sorted(luminance(rgb) for rgb in (one, other))
    return (light + 0.05) / (dark + 0.05)


def lab(rgb):
    white = (0.95047, 1, 1.08883)
    xyz = [sum(weight * value for weight, value in zip(row, rgb))
           for row in ((0.4124564, 0.3575761, 0.1804375), (0.2126729, 0.7151522, 0.0721750),
                       (0.0193339, 0.1191920, 0.9503041))]
    x, y, z = (ratio ** (1 / 3) if ratio > 0.008856 else 7.787 * ratio + 16 / 116
               for ratio in (value / full for value, full in zip(xyz, white)))
    return 116 * y - 16, 500 * (x - y), 200 * (y - z)


def seen(sight, rgb):
    return [min(1, max(0, sum(weight * value for weight, value in zip(row, rgb))))
            for row in SIGHTS[sight]]


class Colors(unittest.TestCase):
    def test_text_has_contrast(self):
        for name, theme in themes().items():
            for text, below in (("text", "page"), ("text", "card"), ("text", "empty"),
                                ("quiet", "page"), ("quiet", "card"), ("quiet", "empty"),
                                ("accent", "page"), ("card", "accent"), ("warning", "warning-page"),
                                ("warning", "page"), ("warning", "card"), ("refusal", "card")):
                found = contrast(linear(theme[text]), linear(theme[below]))
                self.assertGreaterEqual(found, MIN_TEXT_CONTRAST, f"{name}: {text} on {below}")

    def test_areas_or_their_edges_have_contrast(self):
        for name, theme in themes().items():
            below = linear(theme["empty"])
            for layer in (layer for layer in theme if re.match(r"layer-(\d|other)", layer)):
                color = theme[layer]
                found = max(contrast(linear(color, shade), below) for shade in (1, EDGE_SHADE))
                self.assertGreaterEqual(found, MIN_GRAPHIC_CONTRAST, f"{name}: {layer}")

    def test_lines_of_a_comparison_have_contrast(self):
        for name, theme in themes().items():
            for layer in ("layer-0", "layer-5"):
                found = contrast(linear(theme[layer]), linear(theme["card"]))
                self.assertGreaterEqual(found, MIN_GRAPHIC_CONTRAST, f"{name}: {layer}")

    def test_everybody_can_tell_layers_apart(self):
        for name, theme in themes().items():
            layers = [layer for layer in theme if re.match(r"layer-(\d|other)", layer)]
            self.assertEqual(len(layers), 9)
            for sight in SIGHTS:
                for one, other in itertools.combinations(layers, 2):
                    colors = (lab(seen(sight, linear(theme[layer]))) for layer in (one, other))
                    found = sum((a - b) ** 2 for a, b in zip(*colors)) ** 0.5
                    self.assertGreaterEqual(found, MIN_DIFFERENCE,
                                            f"{name}, {sight}: {one} and {other}")


if __name__ == "__main__":
    unittest.main()
