"""What a running kvtap tells of itself besides metrics: `telemetry.py KVTAP`. tests/deploy.rs runs it."""

import json
import subprocess
import sys
import tempfile
import threading
import unittest
import urllib.error
import urllib.request
from concurrent import futures
from contextlib import contextmanager

import grpc
import trustme

import play

CONFIG = """
grpc:  {{ listen: ["{at}:9400"] }}
admin: {{ listen: "{at}:9401" }}
log:   {{ format: {format}, level: {level} }}
feeds:
  - {{ worker: pod-a, model: m, endpoint: "tcp://{at}:5557" }}
"""


@contextmanager
def kvtap(format="json", level="info", **env):
    """A kvtap, its address, and the file that its standard error goes to."""
    at = f"127.{play.random.randint(1, 254)}.{play.random.randint(0, 255)}.1"
    config = CONFIG.format(at=at, format=format, level=level)
    with play.file_of(config) as file, tempfile.TemporaryFile("w+") as log:
        process = subprocess.Popen([play.KVTAP, "serve", "--config", file], env=play.environment(**env), stderr=log)
        try:
            play.eventually("kvtap is ready", lambda: (play.get(at, 9401, "/ready") or (0,))[0] == 200)
            yield at, process, log
        finally:
            process.kill()
            process.wait()


def said(log):
    log.seek(0)
    return log.read().splitlines()


def post_level(at, word, **headers):
    asked = urllib.request.Request(f"http://{at}:9401/log-level", word.encode(), headers, method="POST")
    try:
        with urllib.request.urlopen(asked, timeout=play.PATIENCE) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


class Lines(unittest.TestCase):
    def test_every_line_is_json_once_that_was_asked_for_the_listening_lines_too(self):
        for level in ("info", "error"):
            with self.subTest(level), kvtap(level=level) as (at, process, log):
                listening = {f"grpc listening on {at}:9400", f"admin listening on {at}:9401"}
                play.eventually("it says where it listens", lambda: len(said(log)) >= 2)
                process.terminate()
                self.assertEqual(process.wait(play.PATIENCE), 0)
                lines = [json.loads(line) for line in said(log)]
                self.assertLessEqual(listening, {line["message"] for line in lines})
                for line in lines:
                    self.assertLessEqual({"timestamp", "level", "message"}, set(line))

    def test_text_is_for_people_and_the_listening_line_stands_alone(self):
        with kvtap(format="text") as (at, _, log):
            play.eventually("it says where it listens", lambda: f"grpc listening on {at}:9400" in said(log))

    def test_a_failure_at_the_start_is_json_too(self):
        with kvtap() as (at, _, _), play.file_of(CONFIG.format(at=at, format="json", level="info")) as file:
            command = [play.KVTAP, "serve", "--config", file]
            done = subprocess.run(command, env=play.environment(), capture_output=True, text=True, timeout=play.PATIENCE)
            self.assertEqual(done.returncode, 1)
            last = json.loads(done.stderr.splitlines()[-1])
            self.assertEqual(last["level"], "ERROR")
            self.assertIn(f"{at}:9400", last["message"])

    def test_the_level_is_changed_while_it_runs(self):
        with kvtap(level="error") as (at, process, log):
            self.assertEqual(play.get(at, 9401, "/log-level"), (200, "error\n"))
            self.assertEqual(post_level(at, "info\n"), (200, "info\n"))
            self.assertEqual(json.loads(play.get(at, 9401, "/status")[1])["log_level"], "info")
            play.eventually("that is said", lambda: any("The log level was changed." in line for line in said(log)))
            self.assertEqual(post_level(at, "loud"), (400, "expected error, warn, info, debug or trace, not `loud`\n"))
            # A page that a browser on this host shows is not a person on this host.
            self.assertEqual(post_level(at, "trace", Origin="http://elsewhere.example")[0], 403)
            self.assertEqual(play.get(at, 9401, "/log-level"), (200, "info\n"))
            process.terminate()
            self.assertEqual(process.wait(play.PATIENCE), 0)
            self.assertIn("Told to stop", "\n".join(said(log)))

    def test_the_last_happenings_are_in_the_status(self):
        with kvtap() as (at, _, _):
            post_level(at, "warn")
            newest = json.loads(play.get(at, 9401, "/status")[1])["happenings"]
            changed = [one for one in newest if one["message"] == "The log level was changed."]
            # It was said when warnings alone are written; whoever looks at the page sees it all the same.
            self.assertEqual([one["fields"] for one in changed], ["before=info now=warn"])


class Collector(grpc.GenericRpcHandler):
    """Takes traces as bytes; the names in them are text there."""

    EXPORT = "/opentelemetry.proto.collector.trace.v1.TraceService/Export"

    def __init__(self):
        self.bodies, self.came = [], threading.Event()

    def service(self, call):
        if call.method != self.EXPORT:
            return None

        def take(body, _):
            self.bodies.append(body)
            self.came.set()
            return b""

        return grpc.unary_unary_rpc_method_handler(take)


class Traces(unittest.TestCase):
    def collector(self):
        collector = Collector()
        server = grpc.server(futures.ThreadPoolExecutor(2), handlers=[collector])
        port = server.add_insecure_port("127.0.0.1:0")
        server.start()
        self.addCleanup(server.stop, None)
        return collector, f"http://127.0.0.1:{port}"

    def secured(self, asks):
        """A collector that speaks TLS, and asks for certificates where `asks`; and a folder with what a caller may need."""
        collector, ours, theirs = Collector(), trustme.CA(), trustme.CA()
        signed = ours.issue_cert("127.0.0.1")
        chain = b"".join(blob.bytes() for blob in signed.cert_chain_pems)
        credentials = grpc.ssl_server_credentials(
            [(signed.private_key_pem.bytes(), chain)], ours.cert_pem.bytes() if asks else None, asks
        )
        server = grpc.server(futures.ThreadPoolExecutor(2), handlers=[collector])
        port = server.add_secure_port("127.0.0.1:0", credentials)
        server.start()
        self.addCleanup(server.stop, None)
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        caller = ours.issue_cert("kvtap")
        files = {"ca": ours.cert_pem, "stranger": theirs.cert_pem, "key": caller.private_key_pem, "cert": caller.cert_chain_pems[0]}
        for name, blob in files.items():
            blob.write_to_path(f"{folder.name}/{name}.pem")
        return collector, f"https://127.0.0.1:{port}", folder.name

    def ask(self, at, metadata=()):
        with grpc.insecure_channel(f"{at}:9400") as channel:
            call = channel.unary_unary("/kvtap.v1.QueryService/ListWorkers")
            call(b"", metadata=metadata, timeout=play.PATIENCE)

    def test_a_request_is_a_span_under_the_caller_s_and_holds_nothing_of_the_prompt(self):
        collector, endpoint = self.collector()
        trace, parent = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
        with kvtap(OTEL_EXPORTER_OTLP_ENDPOINT=endpoint, OTEL_BSP_SCHEDULE_DELAY="50") as (at, process, log):
            self.ask(at, [("traceparent", f"00-{trace}-{parent}-01")])
            self.assertTrue(collector.came.wait(play.PATIENCE), said(log))
            process.terminate()
            self.assertEqual(process.wait(play.PATIENCE), 0)
            body = b"".join(collector.bodies)
            for wanted in (b"kvtap.v1.QueryService/ListWorkers", b"service.name", bytes.fromhex(trace)):
                self.assertIn(wanted, body)
            self.assertIn(bytes.fromhex(parent), body)
            # Spans are not log lines.
            self.assertNotIn("ListWorkers", "\n".join(said(log)))

    def test_spans_reach_a_collector_over_tls_and_one_that_asks_who_calls(self):
        for asks in (False, True):
            with self.subTest(asks=asks):
                collector, endpoint, files = self.secured(asks)
                named = {"OTEL_EXPORTER_OTLP_ENDPOINT": endpoint, "OTEL_EXPORTER_OTLP_CERTIFICATE": f"{files}/ca.pem"}
                if asks:
                    named["OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE"] = f"{files}/cert.pem"
                    named["OTEL_EXPORTER_OTLP_CLIENT_KEY"] = f"{files}/key.pem"
                with kvtap(OTEL_BSP_SCHEDULE_DELAY="50", **named) as (at, process, log):
                    self.ask(at)
                    self.assertTrue(collector.came.wait(play.PATIENCE), said(log))
                    process.terminate()
                    self.assertEqual(process.wait(play.PATIENCE), 0)
                self.assertIn(b"kvtap.v1.QueryService/ListWorkers", b"".join(collector.bodies))

    def test_nothing_is_told_to_a_collector_that_nobody_trusted_signed_or_without_what_it_asks_for(self):
        for asks, authority in ((False, "stranger.pem"), (False, None), (True, "ca.pem")):
            with self.subTest(asks=asks, authority=authority):
                collector, endpoint, files = self.secured(asks)
                named = {"OTEL_EXPORTER_OTLP_ENDPOINT": endpoint, "OTEL_EXPORTER_OTLP_TIMEOUT": "500"}
                if authority:
                    named["OTEL_EXPORTER_OTLP_CERTIFICATE"] = f"{files}/{authority}"
                with kvtap(**named) as (at, process, _):
                    self.ask(at)
                    process.terminate()
                    # The last spans are sent, in vain, before it ends.
                    self.assertEqual(process.wait(play.PATIENCE), 0)
                self.assertEqual(collector.bodies, [])

    def test_files_that_cannot_be_used_are_refused_by_the_variable_s_name(self):
        endpoint = {"OTEL_EXPORTER_OTLP_ENDPOINT": "https://127.0.0.1:9"}
        for variable, path, why in (
            ("OTEL_EXPORTER_OTLP_CERTIFICATE", "/no/such/file", "/no/such/file: "),
            ("OTEL_EXPORTER_OTLP_CLIENT_KEY", "/no/such/file", "it needs OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE"),
        ):
            with self.subTest(variable), play.file_of(CONFIG.format(at="127.0.0.1", format="text", level="info")) as file:
                command = [play.KVTAP, "serve", "--config", file]
                env = play.environment(**endpoint, **{variable: path})
                done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=play.PATIENCE)
                self.assertEqual(done.returncode, 64)
                self.assertIn(f"kvtap: {variable}: {why}", done.stderr)

    def test_without_the_variables_nothing_is_sent(self):
        collector, endpoint = self.collector()
        with kvtap(OTEL_EXPORTER_OTLP_ENDPOINT=endpoint, OTEL_SDK_DISABLED="true") as (at, process, _):
            self.ask(at)
            process.terminate()
            self.assertEqual(process.wait(play.PATIENCE), 0)
        self.assertEqual(collector.bodies, [])

    def test_a_collector_that_is_away_disturbs_nobody(self):
        with kvtap(OTEL_EXPORTER_OTLP_ENDPOINT="http://127.0.0.1:9", OTEL_EXPORTER_OTLP_TIMEOUT="200") as (at, process, _):
            self.ask(at)
            process.terminate()
            self.assertEqual(process.wait(play.PATIENCE), 0)

    def test_another_protocol_is_refused_by_name(self):
        with play.file_of(CONFIG.format(at="127.0.0.1", format="text", level="info")) as file:
            env = play.environment(OTEL_TRACES_EXPORTER="otlp", OTEL_EXPORTER_OTLP_PROTOCOL="http/protobuf")
            command = [play.KVTAP, "serve", "--config", file]
            done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=play.PATIENCE)
        self.assertEqual(done.returncode, 64)
        self.assertEqual(done.stderr, "kvtap: OTEL_EXPORTER_OTLP_PROTOCOL: only grpc is spoken, not `http/protobuf`\n")


if __name__ == "__main__":
    play.KVTAP = sys.argv[1]
    unittest.main(argv=["telemetry.py", "--verbose", *sys.argv[2:]])
