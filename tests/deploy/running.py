"""The examples at work, with processes for their pods."""

import unittest

import play
from manifests import EXAMPLES, SIDECARS, config, config_text, example, ranks


# Every form that events, replies and names come in over ZMQ; TensorRT-LLM's, over HTTP, has its own example.
WIRES = [
    (),
    ("--encoding", "map-0.33", "--hashes", "bytes"),
    ("--encoding", "map-0.24"),
    ("--encoding", "array", "--hashes", "bytes"),
    ("--encoding", "array-0.19"),
]


class TenMinutes(unittest.TestCase):
    """What a new user does in the first ten minutes, on every wire: each step gives what deploy/README.md says."""

    def play(self, pod, *wire):
        prompt = range(1, 65)
        with play.ExitStack() as stack:
            # Applied: Ready while the model still loads, and an answer that says "nothing yet".
            kvtap = stack.enter_context(play.ExitStack())
            kvtap.enter_context(pod.kvtap())
            self.assertEqual(pod.probes(), [200, 200, 200])
            [nothing] = pod.ask(prompt)
            self.assertEqual((nothing["state"], nothing["matched_blocks"]), ("connecting", 0))

            # The engine serves prompts, and is followed.
            engine = stack.enter_context(play.ExitStack())
            engine.enter_context(pod.engines(*wire))
            [first] = play.eventually("the engine is followed", pod.all_live)
            self.assertEqual((first["epoch"], first["missed"], sum(first["dropped"].values())), (1, 0, 0), first)
            self.assertEqual(pod.ask(prompt)[0]["state"], "live")

            # kvtap is killed and comes back: the same blocks, the engine undisturbed.
            kvtap.close()
            kvtap.enter_context(pod.kvtap())

            def as_before():
                now = pod.all_live()
                return now and now[0]["last_seq"] >= first["last_seq"] and now

            [again] = play.eventually("it knows again what it knew", as_before)
            self.assertEqual(again["missed"], 0)
            if again["last_seq"] == first["last_seq"]:
                self.assertEqual(again["blocks"], first["blocks"])

            # The engine is killed: said at once, kvtap stays ready, and the next life is another.
            engine.close()
            play.eventually("the engine is away", lambda: pod.workers()[0]["state"] != "live")
            self.assertEqual(pod.probes(), [200, 200, 200])
            life = pod.workers()[0]["epoch"]
            with pod.engines(*wire, "--seed", "7"):

                def next_life():
                    now = pod.all_live()
                    return now and now[0]["epoch"] > life and now

                [second] = play.eventually("its next life is followed", next_life)
                self.assertEqual(second["missed"], 0)

    def test_the_first_ten_minutes_go_well_on_every_wire(self):
        for wire in WIRES:
            with self.subTest(wire=wire):
                self.play(play.Pod(example("vllm")), *wire)

    def test_the_first_ten_minutes_go_well_with_sglang_s_manifest(self):
        self.play(play.Pod(example("sglang")), "--encoding", "array", "--block-size", "64")


class Running(unittest.TestCase):
    def test_each_configuration_passes_the_binary_s_own_check(self):
        for name in EXAMPLES:
            with self.subTest(name):
                done = play.check_config(config_text(example(name)))
                self.assertEqual(done.returncode, 0, done.stderr)
                # One warning a feed is right where events cross the network, and none where they do not.
                expected = 0 if name in SIDECARS else 2 * len(config(example(name))["feeds"])
                self.assertEqual(len(done.stderr.splitlines()), expected, done.stderr)

    def test_each_example_answers_before_its_engine_is_there_and_then_follows_it(self):
        for name in EXAMPLES:
            with self.subTest(name):
                pod = play.Pod(example(name))
                with pod.kvtap():
                    self.assertEqual(pod.probes(), [200, 200, 200])
                    self.assertIn("kvtap_build_info", pod.metrics())
                    before = pod.workers()
                    self.assertEqual(len(before), ranks(pod.settings))
                    self.assertEqual({(one["state"], one["blocks"]) for one in before}, {("connecting", 0)})
                    with pod.engines():
                        after = play.eventually("every rank is live", pod.all_live)
                names = {feed["worker"].replace("${POD_NAME}", play.POD["POD_NAME"]) for feed in pod.settings["feeds"]}
                self.assertEqual({one["worker"] for one in after}, names)

    def test_a_sidecar_that_is_restarted_alone_gets_back_what_it_knew(self):
        pod = play.Pod(example("vllm-multi-rank"))
        with pod.engines():
            with pod.kvtap():
                known = {one["rank"]: one for one in play.eventually("every rank is live", pod.all_live)}

            def as_before():
                now = pod.all_live() or []
                # An engine may have gone on meanwhile; where it has not, it is the same blocks.
                return now and all(
                    one["last_seq"] > known[one["rank"]]["last_seq"]
                    or (one["last_seq"], one["blocks"])
                    == (known[one["rank"]]["last_seq"], known[one["rank"]]["blocks"])
                    for one in now
                )

            with pod.kvtap():
                play.eventually("every rank is as it was", as_before)
                self.assertEqual({one["missed"] for one in pod.workers()}, {0})

    def test_an_engine_that_is_killed_is_said_to_be_away_while_kvtap_stays_ready(self):
        pod = play.Pod(example("vllm"))
        with pod.kvtap():
            with pod.engines():
                play.eventually("the engine is followed", pod.all_live)
            play.eventually("the engine is away", lambda: {one["state"] for one in pod.workers()} == {"connecting"})
            self.assertEqual(pod.probes(), [200, 200, 200])

            def next_life():
                now = pod.all_live()
                return now and now[0]["epoch"] > 1

            with pod.engines():
                play.eventually("its next life is followed", next_life)
