"""Four workers learn to segment real road scenes, one and two images each.

COHORT_CAMVID_DIR names CamVid in VOC's layout.
"""

import os
import re
import unittest

from processes import Cohort

CAMVID = os.environ.get("COHORT_CAMVID_DIR")
CLASSES = 11


@unittest.skipUnless(CAMVID, "COHORT_CAMVID_DIR is not set: no CamVid to "
                     "train on")
class CamVid(unittest.TestCase):
    def train(self, network, batch_size, normalization):
        """Two epochs of 367 images; checks the results that a user looks at."""
        cohort = Cohort(
            workers=4,
            server_flags=["--epochs=2", "--learning_rate=0.02",
                          "--schedule=polynomial", "--poly_power=0.9",
                          f"--normalization={normalization}"],
            worker_flags=[*network, f"--batch_size={batch_size}",
                          "--dataset=voc", f"--data_dir={CAMVID}",
                          "--image_size=45x60"])
        with cohort:
            cohort.start()
            cohort.complete()
            log = cohort.log()
            losses = [float(row["train_loss"]) for row in cohort.rows()
                      if row["train_loss"]]
            by_class = cohort.rows("class_iou.csv")
        self.assertGreater(losses[0], losses[-1])
        miou = re.search(r"^test mIoU ([0-9.]+) %$", log, re.MULTILINE)
        self.assertIsNotNone(miou, log)
        # Predicting one class everywhere gives less than 3.
        self.assertGreater(float(miou.group(1)), 5.0, log)
        texts = re.findall(r"^test IoU of class (\d+) ", log, re.MULTILINE)
        self.assertEqual([int(text) for text in texts], list(range(CLASSES)))
        self.assertGreaterEqual(len(by_class), 2 * CLASSES)
        print(network, batch_size, normalization, "mIoU", miou.group(1),
              "loss", losses, flush=True)

    def train_all(self, *network):
        for batch_size in (1, 2):
            for normalization in ("global", "local"):
                with self.subTest(batch_size=batch_size,
                                  normalization=normalization):
                    self.train(network, batch_size, normalization)

    def test_unet(self):
        self.train_all("--model=unet", "--width=8")

    def test_pspnet(self):
        self.train_all("--model=pspnet18")


if __name__ == "__main__":
    unittest.main(verbosity=2)
