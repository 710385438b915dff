"""Checks what monitoring is given: `observe.py KVTAP`. tests/deploy.rs runs it.

The samples are those of a running kvtap that follows simulated engines; the rules and the dashboard's queries are held
against them by name, label and value, and a real Prometheus scrapes them and answers every query.
"""

import json
import re
import subprocess
import sys
import tempfile
import unittest
import urllib.parse
from pathlib import Path

import yaml
from prometheus_client.openmetrics.parser import text_string_to_metric_families

import play
from manifests import KUSTOMIZE
from promql import groupings, selectors

COMPONENTS = KUSTOMIZE / "components"
RULES = yaml.safe_load((COMPONENTS / "prometheus-rule" / "prometheus-rule.yaml").read_text())["spec"]
DASHBOARD = json.loads((COMPONENTS / "grafana-dashboard" / "kvtap.json").read_text())
# What Prometheus itself says of each target, and the labels that it puts beside a sample's own.
PROMETHEUS_METRICS = {"up": {"job", "instance"}}
TARGET_LABELS = {"namespace", "pod", "container", "job", "instance"}
# The dashboard's variables, each set as if everything were chosen.
VARIABLES = {"$__rate_interval": "1m", "${datasource}": "x"}


def alerts():
    return [rule for group in RULES["groups"] for rule in group["rules"]]


def panels():
    return [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]


def queries():
    """Every expression that people are given, with where it stands."""
    for rule in alerts():
        yield f"alert {rule['alert']}", rule["expr"]
    for panel in panels():
        for target in panel["targets"]:
            yield f"panel {panel['title']}", filled(target["expr"])
    for one in DASHBOARD["annotations"]["list"]:
        yield f"annotation {one['name']}", filled(one["expr"])


def filled(expression):
    for variable, value in VARIABLES.items():
        expression = expression.replace(variable, value)
    return re.sub(r"\$(namespace|pod|model|worker)\b", ".*", expression)


class Samples:
    """What a running kvtap exports while it follows three ranks."""

    CONFIG = """
grpc:  {{ listen: ["{at}:9400"] }}
admin: {{ listen: "{at}:9401" }}
feeds:
  - {{ worker: 'pod "a"', model: 'm\\1', engine: vllm, endpoint: "tcp://{at}:5557", replay: "tcp://{at}:5577", ranks: 3 }}
"""

    @classmethod
    def start(cls, stack):
        pod = f"127.{play.random.randint(1, 254)}.{play.random.randint(0, 255)}.1"
        config = stack.enter_context(play.file_of(cls.CONFIG.format(at=pod)))
        stack.enter_context(play.running("serve", "--config", config))
        sim = ["sim", "--ranks", "3", "--requests", "20", "--linger", "600", "--endpoint", f"tcp://{pod}:5557"]
        stack.enter_context(play.running(*sim, "--replay", f"tcp://{pod}:5577"))

        def held():
            answer = play.get(pod, 9401, "/status")
            workers = json.loads(answer[1])["workers"] if answer else []
            return workers and all(one["state"] == "live" and one["blocks"] for one in workers)

        play.eventually("every rank is live", held)
        ask = [play.KVTAP, "match", "--server", f"{pod}:9400", "--model", "m\\1", "--tokens", "1,2,3"]
        subprocess.run(ask, check=True, capture_output=True, env=play.environment(), timeout=play.PATIENCE)
        cls.address = f"{pod}:9401"
        cls.text = play.get(pod, 9401, "/metrics")[1]
        cls.values = {}
        for family in text_string_to_metric_families(cls.text):
            for sample in family.samples:
                labels = cls.values.setdefault(sample.name, {})
                for label, value in sample.labels.items():
                    labels.setdefault(label, set()).add(value)


class OpenMetrics(unittest.TestCase):
    def test_what_is_exported_passes_the_strict_parser(self):
        families = list(text_string_to_metric_families(Samples.text))
        self.assertTrue(Samples.text.endswith("# EOF\n"))
        self.assertGreater(len(families), 25)
        for family in families:
            self.assertTrue(family.name.startswith("kvtap_"), family.name)
            self.assertTrue(family.documentation, family.name)
        self.assertEqual(Samples.values["kvtap_feed_epoch"]["worker"], {'pod "a"'})
        self.assertEqual(Samples.values["kvtap_feed_epoch"]["model"], {"m\\1"})


class Queries(unittest.TestCase):
    def test_every_metric_label_and_value_that_is_asked_for_is_exported(self):
        seen = set()
        for place, expression in queries():
            asked = selectors(expression)
            self.assertTrue(asked, f"{place} asks for nothing")
            known = set(TARGET_LABELS)
            for name, matchers in asked:
                with self.subTest(place, metric=name):
                    if name in PROMETHEUS_METRICS:
                        labels = dict.fromkeys(PROMETHEUS_METRICS[name], set())
                    else:
                        self.assertIn(name, Samples.values)
                        labels = Samples.values[name]
                    known |= set(labels)
                    for label, how, value in matchers:
                        if label in TARGET_LABELS or value == ".*":
                            self.assertTrue(label in TARGET_LABELS or label in labels, f"{name} has no {label}")
                            continue
                        self.assertIn(label, labels, name)
                        for word in value.split("|") if how in ("=~", "!~") else [value]:
                            self.assertIn(word, labels[label], f"{name}: {label}")
                    seen.add(name)
            self.assertLessEqual(groupings(expression), known, place)
        self.assertGreater(len(seen), 20)

    def test_what_the_alerts_say_names_labels_that_they_have(self):
        for rule in alerts():
            with self.subTest(rule["alert"]):
                said = " ".join(rule["annotations"].values())
                grouped = re.findall(r"\bby \(([^()]*)\)", rule["expr"])
                labels = set(re.findall(r"\$labels\.(\w+)", said))
                have = set(TARGET_LABELS)
                if grouped:
                    have = {label.strip() for label in grouped[-1].split(",")}
                else:
                    for name, _ in selectors(rule["expr"]):
                        have |= set(Samples.values.get(name, ()))
                self.assertLessEqual(labels, have)
                self.assertIn(rule["labels"]["severity"], ("warning", "critical"))

    def test_the_parser_of_these_tests_sees_what_stands_there(self):
        expression = 'sum by (a, b) (rate(kvtap_x_total{c=~"d|e", f!="g{"}[5m])) / on (a) up > 0.5 or kvtap_y == 1'
        asked = [("kvtap_x_total", [("c", "=~", "d|e"), ("f", "!=", "g{")]), ("up", []), ("kvtap_y", [])]
        self.assertEqual(selectors(expression), asked)
        self.assertEqual(groupings(expression), {"a", "b"})


class Dashboard(unittest.TestCase):
    def test_it_opens_on_what_a_person_asks_first(self):
        rows = [panel["title"] for panel in DASHBOARD["panels"] if panel["type"] == "row"]
        self.assertEqual(rows[0], "Who is fresh?")
        self.assertLess(rows.index("What is lost?"), rows.index("How fast are answers?"))

    def test_panels_have_a_title_and_a_meaning_and_do_not_overlap(self):
        taken, ids = set(), set()
        for panel in DASHBOARD["panels"]:
            at = panel["gridPos"]
            cells = {
                (x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])
            }
            self.assertFalse(cells & taken, panel["title"])
            self.assertLessEqual(at["x"] + at["w"], 24)
            taken |= cells
            self.assertNotIn(panel["id"], ids)
            ids.add(panel["id"])
            if panel["type"] != "row":
                self.assertTrue(panel["title"] and panel["description"] and panel["targets"])


class Prometheus(unittest.TestCase):
    def tool(self, *arguments):
        done = subprocess.run(["promtool", *arguments], capture_output=True, text=True, timeout=play.PATIENCE)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)

    def test_the_rules_are_rules_and_each_alert_fires_for_what_it_is_for(self):
        with tempfile.TemporaryDirectory() as folder:
            rules = Path(folder) / "rules.yaml"
            rules.write_text(yaml.safe_dump(RULES))
            self.tool("check", "rules", str(rules))
            cases = yaml.safe_load((Path(__file__).parent / "alerts.yaml").read_text())
            self.assertEqual({case["alert"] for case in cases}, {rule["alert"] for rule in alerts()} | {None})
            told = {"rule_files": [str(rules)], "evaluation_interval": "1m", "tests": [self.case(one) for one in cases]}
            tests = Path(folder) / "tests.yaml"
            tests.write_text(yaml.safe_dump(told))
            self.tool("test", "rules", str(tests))

    def case(self, case):
        """As promtool wants it: that this alert fires then, and no other."""
        firing = {
            "expr": 'count by (alertname) (ALERTS{alertstate="firing"})',
            "eval_time": case["at"],
            "exp_samples": [{"labels": f'{{alertname="{case["alert"]}"}}', "value": 1}] if case["alert"] else [],
        }
        return {
            "interval": "1m",
            "input_series": [{"series": series, "values": values} for series, values in case["series"].items()],
            "promql_expr_test": [firing],
        }

    def test_a_real_prometheus_scrapes_kvtap_and_answers_every_query(self):
        with tempfile.TemporaryDirectory() as folder:
            labels = {"namespace": "default", "pod": "pod-a", "container": "kvtap"}
            scrape = {
                "job_name": "default/kvtap",
                "static_configs": [{"targets": [Samples.address], "labels": labels}],
            }
            (Path(folder) / "rules.yaml").write_text(yaml.safe_dump(RULES))
            everything = {"scrape_interval": "1s", "evaluation_interval": "1s"}
            config = Path(folder) / "prometheus.yaml"
            config.write_text(
                yaml.safe_dump({"global": everything, "rule_files": ["rules.yaml"], "scrape_configs": [scrape]})
            )
            port = play.free_port()
            log = open(Path(folder) / "log", "w+")
            server = subprocess.Popen(
                [
                    "prometheus",
                    f"--config.file={config}",
                    f"--storage.tsdb.path={folder}/data",
                    f"--web.listen-address=127.0.0.1:{port}",
                ],
                stdout=log,
                stderr=log,
            )
            try:

                def ask(expression):
                    path = "/api/v1/query?" + urllib.parse.urlencode({"query": expression})
                    answer = play.get("127.0.0.1", port, path)
                    return json.loads(answer[1]) if answer and answer[0] in (200, 400) else None

                def scraped():
                    answer = ask("count_over_time(kvtap_uptime_seconds[1m])")
                    return answer and answer["data"]["result"] and float(answer["data"]["result"][0]["value"][1]) > 3

                play.eventually("Prometheus has scraped kvtap", scraped)
                # It speaks OpenMetrics with it: only there is an info an info.
                self.assertTrue(ask('kvtap_build_info{pod="pod-a"}')["data"]["result"])
                for place, expression in queries():
                    with self.subTest(place):
                        answer = ask(expression)
                        self.assertEqual(answer["status"], "success", answer)
                        if place.startswith("panel") and " > 0" not in expression:
                            self.assertTrue(answer["data"]["result"], f"nothing is shown for {expression}")
                rules = json.loads(play.get("127.0.0.1", port, "/api/v1/rules")[1])
                health = {one["name"]: one for group in rules["data"]["groups"] for one in group["rules"]}
                self.assertEqual(len(health), len(alerts()))
                for name, one in health.items():
                    self.assertEqual((one["health"], one.get("lastError", "")), ("ok", ""), name)
                    self.assertEqual(one["state"], "inactive", f"{name} fires where all is well")
            except BaseException:
                log.seek(0)
                print(log.read()[-4000:])
                raise
            finally:
                server.terminate()
                server.wait(play.PATIENCE)
                log.close()


def setUpModule():
    Samples.start(STACK)


def tearDownModule():
    STACK.close()


STACK = play.ExitStack()

if __name__ == "__main__":
    play.KVTAP = sys.argv[1]
    unittest.main(argv=["observe.py", "--verbose", *sys.argv[2:]])
