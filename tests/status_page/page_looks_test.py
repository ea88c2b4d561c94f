#!/usr/bin/env python3
"""How the live page looks in every state: widths, contrast, pictures."""

import page_case
import statuses
from page_case import LOOKS, PICTURES

STATES = ("empty", "waiting", "finished", "changed", "segmentation",
          "crowd", "hostile", "wrecked", "sharded", "shard_lost", "training")

# Visible texts whose contrast with their background is below WCAG AA: [text,
# ratio].
FAINT_TEXTS = """
const channels = (text) => text.match(/[\\d.]+/g).map(Number);
const light = ([r, g, b]) => {
  const [x, y, z] = [r, g, b].map((c) => c / 255).map(
      (c) => (c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4));
  return 0.2126 * x + 0.7152 * y + 0.0722 * z;
};
const behind = (node) => {
  for (; node; node = node.parentElement) {
    const color = channels(getComputedStyle(node).backgroundColor);
    if (color.length < 4 || color[3] > 0.99) return color;
  }
  return [255, 255, 255];
};
const faint = [];
for (const node of document.body.querySelectorAll('*')) {
  const own = [...node.childNodes].filter((child) => child.nodeType === 3)
      .map((child) => child.data).join('').trim();
  if (!own || !node.checkVisibility() || node.closest('.unseen')) continue;
  const style = getComputedStyle(node);
  const [a, b] = [light(channels(style.color)), light(behind(node))];
  const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
  const large = parseFloat(style.fontSize) >= 24;
  if (ratio < (large ? 3 : 4.5)) faint.push([own, ratio]);
}
return faint;
"""


class PageLooks(page_case.PageCase):
    def test_nothing_is_wider_than_the_screen(self):
        for state in STATES:
            self.show(getattr(statuses, state)())
            for width in (1280, 1024, 960, 768, 390, 360, 320):
                with self.subTest(state=state, width=width):
                    self.browser.set_look(width, 800)
                    # Charts follow a moment later.
                    self.browser.wait_until(
                        lambda width=width: self.browser.script(
                            "return document.documentElement.scrollWidth")
                        <= width, "what fits the screen")

    def test_every_text_stands_out_enough(self):
        for state in ("changed", "waiting", "crowd", "shard_lost"):
            self.show(getattr(statuses, state)())
            for width, height, scheme in LOOKS:
                with self.subTest(state=state, width=width, scheme=scheme):
                    self.browser.set_look(width, height, scheme)
                    self.assertEqual(self.browser.script(FAINT_TEXTS), [])

    def test_pictures_for_a_person_to_look_at(self):
        if not PICTURES:
            self.skipTest("COHORT_SCREENSHOT_DIR is not set")
        for state in STATES:
            server = self.show(getattr(statuses, state)())
            self.take_pictures(state)
            self.assertNoComplaints()
        server.status = None
        self.browser.wait_until(
            lambda: "Connection lost" in self.browser.text("main"),
            "the banner")
        self.take_pictures("lost")


if __name__ == "__main__":
    page_case.main()
