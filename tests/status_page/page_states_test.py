#!/usr/bin/env python3
"""The live page in a real browser, in states that are hard to reach."""

import statistics

import page_case
import statuses
from fixture_server import FixtureServer


def line_at(points, x):
    """The straight line through points by least squares."""
    slope, intercept = statistics.linear_regression(
        [p["x"] for p in points], [p["y"] for p in points])
    return intercept + slope * x


class PageStates(page_case.PageCase):
    def tile(self, name):
        return self.browser.text(f"#tile-{name}").split("\n")

    def test_training_that_goes_well_answers_five_questions(self):
        self.show(statuses.training())
        self.assertEqual(self.browser.text("h1"), "Training, 2 of 2 workers")
        self.assertEqual(self.browser.text("#progress-facts").split("\n"),
                         ["step 1,234", "epoch 2 of 5",
                          "26\u202f% of 300,000 images"])
        # The newest six of 240 points, a fortieth of the steps, as the curve's
        # key says.
        losses = [{"x": p["version"], "y": p["loss"]}
                  for p in statuses.training()["curves"]["train"][-6:]]
        self.assertEqual(self.tile("learning"), [
            "Is it learning?", "69.8\u202f%", "test accuracy · train loss "
            f"{line_at(losses, losses[-1]['x']):.3f}, falling"])
        self.assertEqual(self.tile("speed"), [
            "How fast?", "1,150 images/s", "3 min 12 s left"])
        self.assertEqual(self.tile("holdup")[1], "No worker")
        self.assertEqual(self.tile("dropped")[1:],
                         ["Nothing", "of 2,468 pushes"])
        self.assertEqual(self.tile("safe")[1:],
                         ["3.1 s ago", "step 1,200 is saved"])
        self.assertNoComplaints()

    def shard_rows(self):
        return self.browser.script(
            "return [...document.querySelectorAll('#shard-rows tr')]"
            ".map((row) => [...row.children].map((cell) => cell.textContent))")

    def test_shards_are_shown_where_there_are_several(self):
        self.show(statuses.training())
        self.assertEqual(self.browser.text("#shards"), "")
        self.show(statuses.sharded())
        self.says("#shards-note", "3 of 3 connected")
        self.assertEqual(self.shard_rows(), [
            ["0", "connected", "33", "32.4 MiB", "12.3 ms", "3\u202f%",
             "never", "this server"],
            ["1", "connected", "32", "32.4 MiB", "13.3 ms", "3\u202f%",
             "never", "10.0.0.1:7070"],
            ["2", "connected, slow", "31", "32.4 MiB", "43.0 ms", "60\u202f%",
             "1", "10.0.0.2:7070"]])
        self.assertNoComplaints()

    def test_a_shard_that_is_gone_holds_the_run_up(self):
        self.show(statuses.shard_lost())
        self.assertIn("data shard 1 at 10.0.0.1:7070", self.browser.text("h1"))
        self.assertEqual(self.tile("holdup")[1:],
                         ["Shard 1", "gone for 12 s"])
        self.says("#shards-note", "2 of 3 connected")
        self.assertEqual(self.shard_rows()[1][1], "gone for 12 s")
        self.says("#announcement", "Waiting: shard 1")
        # Workers cannot join until it is back.
        self.assertEqual(self.count("#worker-rows [data-tone=warning]"), 0)
        self.assertNoComplaints()

    def test_all_of_it_is_above_the_fold(self):
        self.show(statuses.training())
        self.assertLess(self.browser.script(
            "return document.getElementById('curve-quality')"
            ".getBoundingClientRect().bottom"), 800)

    def test_curves_hold_the_points_of_the_status(self):
        status = statuses.training()
        self.show(status)
        drawn = self.chart("data.datasets.map((set) => set.data)")
        self.assertEqual([(p["x"], p["y"]) for p in drawn[0]],
                         [(p["version"], p["loss"])
                          for p in status["curves"]["train"]])
        self.assertEqual(len(drawn[1]), 1)
        # The smooth line: neighbours within a fortieth of the steps.
        self.assertEqual(len(drawn[2]), len(drawn[0]))
        reach = (drawn[0][-1]["x"] - drawn[0][0]["x"]) / 40
        for i in (0, 50, 239):
            near = [p for p in drawn[0]
                    if abs(p["x"] - drawn[0][i]["x"]) <= reach]
            self.assertGreater(len(near), 4)
            self.assertAlmostEqual(drawn[2][i]["y"],
                                   line_at(near, drawn[0][i]["x"]))
        painted = self.browser.script(
            "const c = document.querySelector('#curve-loss canvas');"
            "return c.getContext('2d').getImageData(0, 0, c.width, c.height)"
            ".data.filter((v) => v > 0).length")
        self.assertGreater(painted, 1000)

    def test_speed_is_by_the_clock_and_not_by_the_step(self):
        status = statuses.training()
        # Pairs of steps of 100 images, a microsecond apart, twice a second.
        status["curves"]["train"] = [
            {**statuses.train_point(i, 200, 200), "samples": 100 * i,
             "elapsed_seconds": (i // 2) * 0.5 + (i % 2) * 1e-6,
             "samples_per_second": 1e8 if i % 2 else 200.0}
            for i in range(200)]
        self.show(status)
        speeds = [p["y"] for p in self.chart("data.datasets[0].data",
                                             "#curve-speed")]
        self.assertGreater(len(speeds), 150)
        # 400 images a second, except for a pair at the beginning.
        self.assertGreater(min(speeds), 350)
        self.assertLess(max(speeds), 650)

    def test_pause_does_not_slow_the_steps_behind_it(self):
        status = statuses.training()
        # 400 images a second, with a pause of 30 s.
        status["curves"]["train"] = [
            {**statuses.train_point(i, 200, 200), "samples": 100 * i,
             "elapsed_seconds": i * 0.25 + (30 if i >= 100 else 0)}
            for i in range(200)]
        self.show(status)
        speeds = {p["x"]: p["y"] for p in self.chart("data.datasets[0].data",
                                                     "#curve-speed")}
        steps = {p["version"]: i
                 for i, p in enumerate(status["curves"]["train"])}
        slow = [steps[x] for x, y in speeds.items() if y < 390]
        self.assertEqual(slow, [100])

    def test_what_is_complete_is_not_shown_as_twice_that(self):
        status = statuses.training()
        for point in status["curves"]["train"]:
            point["accuracy"] = 1.0
        status["curves"]["test"] = []
        self.show(status)
        self.assertLessEqual(self.chart("scales.y.max", "#curve-quality"), 1)

    def test_drained_run_says_which_step_was_tested(self):
        self.show(statuses.drained())
        self.assertIn("test accuracy of step 1,500", self.tile("learning")[2])
        self.assertEqual(self.tile("speed")[1:], [
            "1,147 images/s", "on average · ended after 1 min 49 s"])

    def test_resumed_run_is_safe_and_has_steps(self):
        self.show(statuses.resumed())
        self.assertEqual(self.tile("learning")[1:], [
            "Not yet", "no step since the server was started again"])
        self.assertEqual(self.tile("safe")[1:],
                         ["3.1 s ago", "step 1,200 is saved"])

    def test_curves_of_a_resumed_run_show_where_their_records_begin(self):
        status = statuses.training(version=1200)
        curve = status["curves"]["train"]
        status["checkpoint"]["restored"] = True
        status["curves"]["train"] = [p for p in curve if p["version"] > 900]
        self.show(status)
        self.assertEqual(self.chart("scales.x.min"), 0)
        self.assertEqual(self.chart("$marks[0]"), {
            "x": status["curves"]["train"][0]["version"],
            "text": "recorded from here"})
        status["curves"]["train"] = curve
        self.show(status)
        self.assertEqual(self.chart("$marks"), [])

    def steps_shown(self, figure):
        return [self.chart(f"scales.x.{end}", figure) for end in ("min", "max")]

    def test_dragging_across_a_curve_zooms_all_of_them(self):
        server = self.show(statuses.training(version=1000))
        self.assertEqual(self.steps_shown("#curve-loss"), [0, 1000])
        self.browser.drag("#curve-loss canvas", 0.4, 0.6)
        low, high = self.steps_shown("#curve-loss")
        self.assertGreater(low, 250)
        self.assertLess(high, 750)
        self.assertEqual(self.steps_shown("#curve-speed"), [low, high])
        # The zoom outlives the next answers.
        asked = len(server.asked_at)
        self.browser.wait_until(lambda: len(server.asked_at) > asked + 1,
                                "answers")
        self.assertEqual(self.steps_shown("#curve-rate"), [low, high])
        self.browser.click("#curve-loss .whole")
        self.assertEqual(self.steps_shown("#curve-quality"), [0, 1000])
        self.assertNoComplaints()

    def test_zoom_to_the_newest_step_grows_with_the_run(self):
        server = self.show(statuses.training(version=1000))
        self.browser.drag("#curve-loss canvas", 0.5, 0.999)
        low, high = self.steps_shown("#curve-loss")
        self.assertGreater(low, 300)
        self.assertEqual(high, 1000)
        server.status = statuses.training(version=1200)
        self.browser.wait_until(
            lambda: self.steps_shown("#curve-loss") == [low, 1200], "growth")

    def test_click_on_a_curve_does_not_zoom(self):
        self.show(statuses.training(version=1000))
        self.browser.drag("#curve-loss canvas", 0.5, 0.502)
        self.assertEqual(self.steps_shown("#curve-loss"), [0, 1000])

    def test_legend_leaves_out_series_that_have_ended(self):
        status = statuses.training(version=1000)
        status["curves"]["test"] = [
            statuses.evaluation(0, 300, "async"),
            statuses.evaluation(1, 900, "sync")]
        self.show(status)
        keys = self.browser.text("#curve-loss .keys")
        self.assertIn("test", keys)
        self.assertNotIn("async", keys)
        label = self.browser.script(
            "return document.querySelector('#curve-loss canvas')"
            ".getAttribute('aria-label')")
        self.assertIn("test (async)", label)

    def test_labels_of_changes_do_not_cross_the_lines_of_others(self):
        status = statuses.training(version=1000)
        status["policy"] = {**status["policy"], "history": [
            {"policy_epoch": 1, "version": 0, "settings": {}, "text": "sync"},
            *({"policy_epoch": 2 + i, "version": at, "text": "",
               "settings": {"aggregation": name}}
              for i, (at, name) in enumerate(
                  ((500, "bounded"), (510, "async"), (520, "sync"))))]}
        self.show(status)
        # In one piece: the page draws its other charts once a second.
        written, lines = self.browser.script(
            "const chart = Chart.getChart("
            "    document.querySelector('#curve-loss canvas'));"
            "const context = CanvasRenderingContext2D.prototype;"
            "const draw = context.fillText;"
            "const written = [];"
            "context.fillText = function(text, x, y) {"
            "  written.push([text, x, x + this.measureText(text).width]);"
            "  return draw.call(this, text, x, y); };"
            "chart.draw();"
            "context.fillText = draw;"
            "return [written, [500, 510, 520].map("
            "    (step) => chart.scales.x.getPixelForValue(step))]")
        labels = [of for of in written if of[0] in ("bounded", "async", "sync")]
        self.assertGreater(len(labels), 0)
        for text, left, right in labels:
            for line in lines:
                self.assertFalse(left <= line <= right, f"{text} on a line")

    def test_worker_table_has_the_use_of_cores_and_memory(self):
        self.show(statuses.training())
        row = self.browser.text("#worker-rows tr:last-child")
        self.assertIn("1.5 cores", row)
        self.assertIn("1.3 GiB", row)

    def test_ended_run_shows_its_workers_as_they_were(self):
        self.show(statuses.finished())
        self.assertIn("at the end", self.browser.text("#workers-note"))
        row = self.browser.text("#worker-rows tr:first-child")
        self.assertIn("finished", row)
        self.assertNotIn("7.5 s", row)
        self.assertIn("MiB", row)

    def test_only_links_of_the_web_are_shown(self):
        server = self.show(statuses.training())
        hidden = "return document.getElementById('dashboards').hidden"
        self.assertTrue(self.browser.script(hidden))
        server.status = {**statuses.training(),
                         "dashboards_url": "https://grafana.example/d/1"}
        self.browser.wait_until(lambda: not self.browser.script(hidden),
                                "the link")
        server.status = {**statuses.training(),
                         "dashboards_url": "javascript:alert(1)"}
        self.browser.wait_until(lambda: self.browser.script(hidden),
                                "no link")

    def test_a_model_that_was_written_is_safe_without_checkpoints(self):
        status = statuses.finished()
        status["checkpoint"] = {"enabled": False, "version": None,
                                "written_unix_s": None, "failures": 0,
                                "restored": False, "model_version": 4690}
        self.show(status)
        self.assertEqual(self.tile("safe")[1:],
                         ["Saved", "the model of step 4,690 is written"])

    def test_a_checkpoint_that_failed_says_why(self):
        status = statuses.training()
        problem = ("checkpoint of step 312 failed; the next one will still be "
                   "tried: state: No space left on device")
        status["checkpoint"]["failures"] = 2
        status["checkpoint_problem"] = problem
        server = self.show(status)
        self.assertIn(problem, self.tile("safe")[2])
        # One that was written since, and an older server.
        status["checkpoint_problem"] = ""
        server.status = status
        self.browser.wait_until(
            lambda: "2 checkpoints failed" in self.tile("safe")[2],
            "the number of failures")

    def test_without_a_barrier_nobody_comes_last(self):
        self.show(statuses.changed())
        self.assertNotIn("%", self.browser.text("#worker-rows"))
        self.assertIn("no exchange", self.browser.text("#bn-figures"))
        self.assertIn("from the moving ones", self.browser.text("#bn-drift-note"))

    def test_worker_that_is_waited_for_is_named_three_times(self):
        self.show(statuses.waiting())
        self.assertIn("worker 3, 4.2 s", self.browser.text("h1"))
        self.assertEqual(self.tile("holdup")[1:],
                         ["Worker 3", "silent for 4.2 s"])
        first = self.browser.text("#worker-rows tr:first-child")
        self.assertTrue(first.startswith("3 "), first)
        self.assertIn("vacant, waited for", first)

    def test_an_elastic_cohort_misses_nobody_above_its_minimum(self):
        status = statuses.elastic(3)
        self.show(status)
        self.assertEqual(self.tile("holdup")[1], "No worker")
        self.says("#progress-facts", "workers: 3, from 2 to 4")
        self.says("#workers-note", "3 live, from 2 to 4")
        self.assertNotIn("waited for", self.browser.text("#worker-rows"))

    def test_an_elastic_cohort_below_its_minimum_waits_for_any_worker(self):
        status = statuses.elastic(1, "waiting for 1 more worker")
        self.show(status)
        self.assertEqual(self.tile("holdup")[1:],
                         ["1 more worker", "any worker that joins will do"])
        self.assertNotIn("waited for", self.browser.text("#worker-rows"))
        # One that has joined and holds up the others is named.
        status = statuses.elastic(2, "waiting for worker 1")
        status.update(waited_for=[1])
        self.show(status)
        self.assertEqual(self.tile("holdup")[1], "Worker 1")

    def test_only_a_new_state_is_read_out(self):
        server = self.show(statuses.waiting())
        self.browser.script(
            "window.announced = 0; new MutationObserver(() => announced += 1)"
            ".observe(document.getElementById('announcement'),"
            "{childList: true, characterData: true, subtree: true});")
        for seconds in ("5.2", "6.2"):
            text = f"waiting for a replacement of worker 3, {seconds} s"
            server.status = {**server.status, "state": text}
            self.browser.wait_until(
                lambda text=text: self.browser.text("h1") == text.capitalize(),
                text)
        self.assertEqual(self.browser.script("return announced"), 0)
        server.status = statuses.training()
        self.browser.wait_until(
            lambda: self.browser.script("return announced") == 1, "the state")

    def test_slow_worker_is_named(self):
        self.show(statuses.crowd())
        self.assertEqual(self.tile("holdup")[1:],
                         ["Worker 41", "188 ms of own work a step, half of "
                          "all: up to 65.9 ms"])
        self.says("#worker-rows tr:first-child", "slow")
        self.assertIn("worker 41", self.browser.text("#phase-bars"))

    def test_long_lists_are_cut_until_somebody_asks(self):
        self.show(statuses.crowd())
        self.assertEqual(self.count("#worker-rows tr"), 12)
        self.says("#workers-more", "Show all 64 workers")
        self.browser.click("#workers-more")
        self.assertEqual(self.count("#worker-rows tr"), 64)
        self.browser.click("#workers-more")
        self.assertEqual(self.count("#worker-rows tr"), 12)
        self.assertEqual(len(self.browser.text("#bn-bars").split("\n")), 2 * 53)

    def test_what_happened_is_told_newest_first(self):
        self.show(statuses.training())
        told = self.browser.text("#event-rows").split("\n")
        self.assertEqual(told[1::2], [
            "Rank 1: a replacement joined as incarnation 3",
            "Rank 1 is lost at step 87: silent for 6 s",
            "Rank 1 joined as incarnation 2"])
        self.assertRegex(told[0], r"^\d\d:\d\d:\d\d$")
        self.assertFalse(self.browser.text("#events-none"))

    def test_policy_its_changes_and_what_is_under_way(self):
        self.show(statuses.changed())
        self.says("#policy-since", "since step 1,800")
        self.says("#policy-text", "Async, local normalisation")
        self.says("#policy-pending", "aggregation=sync normalization=global, ")
        self.assertEqual(self.browser.text("#policy-rows").split("\n"), [
            "3 1,800 learning_rate=0.05",
            "2 900 aggregation=async normalization=local staleness=scale"])
        self.assertEqual(self.chart("$marks"), [
            {"x": 900, "text": "async +2"},
            {"x": 1800, "text": "learning rate 0.05"}])

    def test_policy_that_a_run_began_with_is_no_change(self):
        self.show(statuses.training())
        self.assertIn("Not changed", self.browser.text("#policy"))
        self.assertEqual(self.browser.text("#policy-rows"), "")

    def test_pushes_that_were_lost_are_told_apart_from_damped_ones(self):
        self.show(statuses.changed())
        self.assertEqual(self.tile("dropped")[1:], [
            "0.3\u202f% of pushes",
            "31 dropped, 2 rejected nonfinite, 1,702 damped"])
        self.assertIn("None fenced", self.browser.text("#verdicts"))

    def test_labels_of_pixels_bring_miou_to_the_front(self):
        self.show(statuses.segmentation())
        self.assertEqual(self.tile("learning")[1], "54.0\u202f%")
        self.assertTrue(self.tile("learning")[2].startswith("mIoU"))
        self.says("#curve-quality", "mIoU and pixel accuracy")

    def test_nothing_yet_is_said_and_not_drawn(self):
        self.show(statuses.empty())
        self.assertEqual(self.tile("learning")[1], "Not yet")
        self.assertEqual(self.tile("holdup")[1], "Workers 0 and 1")
        self.assertEqual(self.tile("safe")[1:],
                         ["Not saved", "checkpoints are off"])
        self.assertIn("Begins with", self.browser.text("#curve-loss"))

    def test_fields_that_are_missing_leave_dashes(self):
        self.show(statuses.wrecked())
        self.assertEqual(self.browser.text("h1"), "Training")
        self.assertEqual(self.tile("safe")[1], "–")
        self.assertNoComplaints()

    def test_lost_connection_is_said_and_found_again(self):
        server = self.show(statuses.training())
        good, server.status = server.status, None
        self.browser.wait_until(
            lambda: "Connection lost since" in self.browser.text("main"),
            "the banner")
        self.assertIn("no answer for", self.browser.text("#fresh"))
        self.assertEqual(self.browser.text("h1"), "Training, 2 of 2 workers")
        server.asked_at.clear()
        self.browser.wait_until(lambda: len(server.asked_at) >= 4,
                                "four attempts")
        gaps = [b - a for a, b in zip(server.asked_at, server.asked_at[1:])]
        self.assertGreater(gaps[-1], 4, "the page does not hold back")
        server.status = good
        self.browser.wait_until(
            lambda: "Connection lost" not in self.browser.text("main"),
            "the end of the banner")

    def test_finished_run_stays_shown_when_its_server_ends(self):
        server = self.show(statuses.finished())
        server.status = None
        self.browser.wait_until(
            lambda: "The run is over and the server has ended" in
            self.browser.text("main"), "the banner")
        self.assertEqual(self.browser.text("h1"), "Over: all 5 epochs are done")
        self.assertNotIn("Connection lost", self.browser.text("main"))

    def test_slow_server_is_asked_one_thing_at_a_time(self):
        server = self.show(statuses.training())
        server.pause_s = 1.5
        server.asked_at.clear()
        self.browser.wait_until(lambda: len(server.asked_at) >= 3,
                                "three requests")
        self.assertEqual(server.most_at_once, 1)

    def test_hostile_names_are_shown_and_inject_nothing(self):
        # An open dialog would fail each later command.
        self.show(statuses.hostile())
        self.assertIn(statuses.HOSTILE, self.browser.text("h1"))
        self.assertIn(statuses.HOSTILE, self.browser.text("#worker-rows"))
        self.assertIn(statuses.HOSTILE, self.browser.text("#bn-bars"))
        self.assertIn(statuses.HOSTILE, self.browser.text("#event-rows"))
        self.assertEqual(self.count("body img, body script"), 0)
        self.assertNoComplaints()

    def test_what_slips_through_is_blocked_and_noticed(self):
        self.show(statuses.training(),
                  raw="<script>window.hacked = 1</script>"
                      "<p style='color: red'>")
        self.assertIsNone(self.browser.script("return window.hacked ?? null"))
        complaints = " ".join(self.browser.complaints())
        self.assertIn("script-src", complaints)
        self.assertIn("style-src", complaints)

    def test_without_charts_the_rest_is_there(self):
        self.show(statuses.training(), chart=False)
        self.assertIn("did not load", self.browser.text("#curve-loss"))
        self.assertEqual(self.tile("learning")[1], "69.8\u202f%")

    def test_without_scripts_the_page_names_the_command(self):
        self.browser.set_scripts(False)
        self.addCleanup(self.browser.set_scripts, True)
        with FixtureServer(statuses.training()) as server:
            self.browser.open(server.url)
            self.assertIn("cohortctl status", self.browser.text("body"))
            self.assertNotIn("Held up by", self.browser.text("body"))

    def test_assistive_tools_find_names_and_headers(self):
        self.show(statuses.training())
        self.assertEqual(self.browser.script(
            "return [...document.querySelectorAll('thead th')]"
            ".filter((th) => th.scope !== 'col').length"), 0)
        labels = self.browser.script(
            "return [...document.querySelectorAll('canvas')]"
            ".map((canvas) => canvas.getAttribute('aria-label'))")
        self.assertTrue(labels[0].startswith("Loss: train from 2.3"), labels)
        self.assertEqual(self.browser.script(
            "return document.getElementById('progress')"
            ".getAttribute('aria-valuenow')"), "26")

    def test_charts_follow_the_colour_scheme(self):
        self.show(statuses.training())
        drawn = ("const chart = Chart.getChart("
                 "document.querySelector('#curve-loss canvas'));"
                 "return [0, 1].map((i) => chart.getDatasetMeta(i).data[0]"
                 ".options.backgroundColor)")
        light = self.browser.script(drawn)
        self.browser.set_look(1280, 800, "dark")
        self.browser.wait_until(
            lambda: all(a != b for a, b in
                        zip(light, self.browser.script(drawn))),
            "other colours")


if __name__ == "__main__":
    page_case.main()
