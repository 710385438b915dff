//! The configuration file: what is read, what overrides it, and how every fault is told.

#![allow(clippy::unwrap_used, clippy::panic)]

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use kvtap::config::{Config, Engine, Env, Format, Level};
use kvtap::feed::zmq::{Heartbeat, Mode, QueueLimits, SubOptions, Timing, Transport};
use kvtap::index::Copies;
use kvtap::serve::ListenAddr;

/// One feed and nothing else; further lines of that feed may follow.
fn one_feed(lines: &str) -> String {
    let mut text = "feeds:\n  - worker: w\n    model: m\n    endpoint: tcp://127.0.0.1:5557\n".to_owned();
    for line in lines.lines() {
        text.push_str(&format!("    {line}\n"));
    }
    text
}

fn env(pairs: &[(&str, &str)]) -> Env {
    pairs.iter().copied().collect()
}

#[track_caller]
fn good(text: &str, pairs: &[(&str, &str)]) -> Config {
    Config::parse(text, "kvtap.yaml", &env(pairs)).unwrap().0
}

fn warnings(text: &str) -> String {
    Config::parse(text, "kvtap.yaml", &Env::default()).unwrap().1.to_string()
}

#[track_caller]
fn assert_faults(text: &str, pairs: &[(&str, &str)], lines: &[&str]) {
    match Config::parse(text, "kvtap.yaml", &env(pairs)) {
        Ok(_) => panic!("accepted:\n{text}"),
        Err(faults) => assert_eq!(faults.to_string(), lines.join("\n"), "in:\n{text}"),
    }
}

fn tcp(text: &str) -> ListenAddr {
    ListenAddr::Tcp(text.parse().unwrap())
}

// === what is read ===

#[test]
fn the_smallest_configuration_is_read() {
    let text = r#"
grpc:  { listen: ["127.0.0.1:9400", "[::]:9400", "unix:///run/kvtap/kvtap.sock"] }
admin: { listen: "127.0.0.1:9401" }
feeds:
  - worker: pod-a
    model: my-model
    engine: vllm
    endpoint: tcp://127.0.0.1:5557
    replay: tcp://127.0.0.1:5558
    ranks: 1
    block_size: 16
"#;
    let config = good(text, &[]);
    let unix = ListenAddr::Unix(PathBuf::from("/run/kvtap/kvtap.sock"));
    assert_eq!(config.grpc.listen, [tcp("127.0.0.1:9400"), tcp("[::]:9400"), unix]);
    assert_eq!(config.admin.listen, "127.0.0.1:9401".parse::<SocketAddr>().unwrap());
    let [feed] = &config.feeds[..] else { panic!("one feed") };
    assert_eq!((feed.worker.as_str(), feed.model.as_str(), feed.engine), ("pod-a", "my-model", Engine::Vllm));
    assert_eq!(feed.endpoint.to_string(), "tcp://127.0.0.1:5557");
    assert_eq!(feed.replay.as_ref().unwrap().to_string(), "tcp://127.0.0.1:5558");
    assert_eq!((feed.ranks, feed.rank_numbers(), feed.grid.unwrap().size()), (1, 0..1, 16));
    assert_eq!(warnings(text), "");
}

#[test]
fn what_is_not_given_has_its_default() {
    let config = good(&one_feed(""), &[]);
    assert_eq!(config.grpc.listen, [tcp("127.0.0.1:9400")]);
    assert_eq!((config.grpc.max_message_bytes, config.grpc.reflection), (16 << 20, true));
    assert_eq!((config.log.level, config.log.format), (Level::Info, Format::Text));
    assert_eq!((config.snapshot.directory, config.snapshot.interval), (None, Duration::from_secs(60)));
    let feed = &config.feeds[0];
    assert_eq!((feed.engine, feed.mode, feed.copies), (Engine::Auto, Mode::Connect, Copies::Count));
    assert_eq!((feed.address.as_str(), feed.topic.as_str(), feed.names.len()), ("", "", 0));
    assert_eq!((feed.replay.as_ref(), feed.grid), (None, None));
    // What the transport does by default is what is documented as the default.
    let endpoint = "tcp://127.0.0.1:5557".parse().unwrap();
    assert_eq!(feed.link(0).unwrap(), Some(SubOptions::new(endpoint, Mode::Connect)));
    assert_eq!(feed.replay(0).unwrap(), None);
}

#[test]
fn every_setting_of_a_feed_is_read() {
    let config = good(
        &one_feed(
            r#"address: 10.1.2.3:8000
names: ["http://10.1.2.3:8000", "42"]
engine: sglang
replay: tcp://localhost:6000
topic: kv@pod-a
ranks: 4
first_rank: 4
bind: true
block_size: 64
copies: set
queue_messages: 100
queue_bytes: 2MiB
replay_timeout: 1500ms
disconnect_grace: 5m
reconnect_max: 7s
heartbeat_interval: 1s
heartbeat_timeout: 3s
transport: zeromq"#,
        ),
        &[],
    );
    let feed = &config.feeds[0];
    assert_eq!((feed.engine, feed.mode, feed.copies), (Engine::Sglang, Mode::Bind, Copies::Set));
    assert_eq!((feed.rank_numbers(), feed.topic.as_str()), (4..8, "kv@pod-a"));
    let link = feed.link(5).unwrap().unwrap();
    assert_eq!((link.endpoint.to_string().as_str(), link.topic.as_str()), ("tcp://127.0.0.1:5562", "kv@pod-a"));
    assert_eq!((link.mode, link.transport), (Mode::Bind, Transport::Zeromq));
    assert_eq!(link.queue, QueueLimits { messages: 100, bytes: 2 << 20 });
    let heartbeat = Heartbeat { interval: Duration::from_secs(1), timeout: Duration::from_secs(3) };
    assert_eq!(link.timing, Timing { longest_retry: Duration::from_secs(7), heartbeat, ..Timing::default() });
    let replay = feed.replay(5).unwrap().unwrap();
    assert_eq!(
        (replay.endpoint.to_string().as_str(), replay.idle),
        ("tcp://localhost:6005", Duration::from_millis(1500))
    );
    assert_eq!(feed.tuning.disconnect_grace, Duration::from_secs(300));
    let identity = feed.identity(5);
    assert_eq!(identity.to_string(), "w/5");
    for name in ["w", "10.1.2.3:8000", "http://10.1.2.3:8000", "42"] {
        assert!(identity.is_called(name), "{name}");
    }
}

#[test]
fn a_feed_says_otherwise_than_the_defaults_of_all_feeds() {
    let text = "defaults: { disconnect_grace: 1m, queue_messages: 7 }\n".to_owned() + &one_feed("queue_messages: 8");
    let tuning = good(&text, &[]).feeds.remove(0).tuning;
    assert_eq!((tuning.queue.messages, tuning.disconnect_grace), (8, Duration::from_secs(60)));
}

#[test]
fn an_empty_file_is_a_server_without_engines() {
    for text in ["", "# nothing yet\n", "feeds: []\n", "feeds:\n"] {
        assert!(good(text, &[]).feeds.is_empty());
        assert!(warnings(text).ends_with("feeds: no engine is listed: every answer will be empty"), "{text:?}");
    }
}

#[test]
fn feeds_may_share_settings_through_yaml_anchors() {
    let text = one_feed("engine: vllm").replace("- worker", "- &first\n    worker")
        + "  - <<: *first\n    worker: v\n    endpoint: tcp://127.0.0.1:6000\n";
    let config = good(&text, &[]);
    assert_eq!((config.feeds[1].worker.as_str(), config.feeds[1].engine), ("v", Engine::Vllm));
}

// === variables ===

#[test]
fn variables_are_put_into_values() {
    let text = one_feed(
        "address: \"${POD_IP}:${PORT:-8000}\"\nnames: [\"${POD_NAME}\", \"$${NOT_ONE}\", a$b]\nranks: ${RANKS}",
    )
    .replace("worker: w", "worker: ${POD_NAME}");
    let feed =
        good(&text, &[("POD_NAME", "pod-a"), ("POD_IP", "10.0.0.7"), ("PORT", ""), ("RANKS", "2")]).feeds.remove(0);
    assert_eq!((feed.worker.as_str(), feed.address.as_str(), feed.ranks), ("pod-a", "10.0.0.7:8000", 2));
    assert_eq!(feed.names, ["pod-a", "${NOT_ONE}", "a$b"]);
    // What a variable holds is not expanded again.
    assert_eq!(good(&one_feed("topic: ${A}"), &[("A", "${B}")]).feeds[0].topic, "${B}");
}

#[test]
fn a_variable_that_cannot_be_put_in_is_a_fault() {
    assert_faults(
        &one_feed("topic: ${NOPE}\naddress: ${}\nnames: [\"${OPEN\", \"${1X}\"]"),
        &[],
        &[
            "kvtap.yaml:5:12: feeds[0].topic: the environment variable NOPE is not set (write ${NOPE:-...} to give a default)",
            "kvtap.yaml:6:14: feeds[0].address: `${}` does not name an environment variable",
            "kvtap.yaml:7:13: feeds[0].names[0]: `${` has no `}` (write `$${` for a plain `${`)",
            "kvtap.yaml:7:23: feeds[0].names[1]: `${1X}` does not name an environment variable",
        ],
    );
}

#[test]
fn a_variable_overrides_the_file() {
    let overrides = [
        ("KVTAP_GRPC_LISTEN", "0.0.0.0:1, unix:///tmp/s"),
        ("KVTAP_GRPC_REFLECTION", "false"),
        ("KVTAP_GRPC_MAX_MESSAGE_BYTES", "1MiB"),
        ("KVTAP_ADMIN_LISTEN", "[::1]:2"),
        ("KVTAP_LOG_LEVEL", "debug"),
        ("KVTAP_LOG_FORMAT", "json"),
        ("KVTAP_LIMITS_BLOCKS_PER_RANK", "5"),
        ("KVTAP_DEFAULTS_DISCONNECT_GRACE", "7s"),
    ];
    // What is overridden may even be faulty in the file.
    let text = "grpc: { listen: 7, reflection: true }\nlog: { level: loud }\n".to_owned() + &one_feed("");
    let config = good(&text, &overrides);
    assert_eq!(config.grpc.listen, [tcp("0.0.0.0:1"), ListenAddr::Unix(PathBuf::from("/tmp/s"))]);
    assert_eq!((config.grpc.reflection, config.grpc.max_message_bytes), (false, 1 << 20));
    assert_eq!(config.admin.listen.to_string(), "[::1]:2");
    assert_eq!((config.log.level, config.log.format), (Level::Debug, Format::Json));
    assert_eq!(config.limits.blocks_per_rank, 5);
    assert_eq!(config.feeds[0].tuning.disconnect_grace, Duration::from_secs(7));
}

#[test]
fn a_faulty_or_unknown_overriding_variable_is_a_fault() {
    assert_faults(
        &one_feed("ranks: 0"),
        &[("KVTAP_GRPC_LISTN", "x"), ("KVTAP_LOG_LEVEL", "loud"), ("KVTAP_WHATEVER", "x"), ("HOME", "/")],
        &[
            "kvtap.yaml:5:12: feeds[0].ranks: expected 1 to 1024 ranks, not `0`",
            "KVTAP_GRPC_LISTN: no such setting; did you mean KVTAP_GRPC_LISTEN?",
            "KVTAP_LOG_LEVEL: log.level: expected error, warn, info, debug or trace, not `loud`",
            "KVTAP_WHATEVER: no such setting; variables that begin with KVTAP_ override settings, as KVTAP_<SECTION>_<KEY>",
        ],
    );
}

#[test]
fn a_variables_name_cannot_write_lines_of_its_own() {
    assert_faults(
        &one_feed(""),
        &[("KVTAP_A\nlog: all is well\u{1b}[2J", "x")],
        &[
            "KVTAP_A?log: all is well?[2J: no such setting; variables that begin with KVTAP_ override settings, as KVTAP_<SECTION>_<KEY>",
        ],
    );
}

#[test]
fn what_kubernetes_tells_of_a_service_called_kvtap_is_no_setting() {
    let links = [
        ("KVTAP_SERVICE_HOST", "10.0.0.1"),
        ("KVTAP_SERVICE_PORT", "9400"),
        ("KVTAP_SERVICE_PORT_GRPC", "9400"),
        ("KVTAP_PORT", "tcp://10.0.0.1:9400"),
        ("KVTAP_PORT_9400_TCP", "tcp://10.0.0.1:9400"),
        ("KVTAP_PORT_9400_TCP_PROTO", "tcp"),
        ("KVTAP_PORT_9400_TCP_PORT", "9400"),
        ("KVTAP_PORT_9400_TCP_ADDR", "10.0.0.1"),
        ("KVTAP_ADMIN_SERVICE_HOST", "10.0.0.2"),
        ("KVTAP_ADMIN_PORT_9401_TCP", "tcp://10.0.0.2:9401"),
    ];
    good(&one_feed(""), &links);
    // A mistyped setting does not pass for one of these.
    assert_faults(
        &one_feed(""),
        &[("KVTAP_ADMIN_PORT", "9401")],
        &["KVTAP_ADMIN_PORT: no such setting; did you mean KVTAP_ADMIN_LISTEN?"],
    );
}

// === faults ===

#[test]
fn every_fault_of_a_file_is_told_in_one_go_with_its_place() {
    let text = "\
grpc:
  listen: [\"9400\", \"127.0.0.1:9400\", \"unix://relative\"]
  max_message_bytes: 1KiB
  reflection: maybe
  drain_grace: 10
admin: { listen: localhost }
log: { level: loud, format: xml, colour: true }
limits: { blocks_per_rank: 0, blocks_in_all: -1 }
defaults: { replay_timeout: 2 minutes }
feed: []
feeds:
  - worker: ''
    model: 1.10
    engine: llama
    endpoint: 127.0.0.1:5557
    block_size: 0
    enpoint: x
  - model: m
    endpoint: tcp://127.0.0.1:5557
    replay: tcp://127.0.0.1:x
    ranks: [2]
    copies: both
    copies: set
  - 7
";
    assert_faults(
        text,
        &[],
        &[
            "kvtap.yaml:2:12: grpc.listen[0]: expected an ip:port such as 127.0.0.1:9400 or [::]:9400, or unix:///path, not `9400`",
            "kvtap.yaml:2:38: grpc.listen[2]: the path of a unix socket starts with `/`, as in unix:///run/kvtap.sock, not `unix://relative`",
            "kvtap.yaml:3:22: grpc.max_message_bytes: expected 64KiB to 1GiB, not `1KiB`",
            "kvtap.yaml:4:15: grpc.reflection: expected true or false, not `maybe`",
            "kvtap.yaml:5:16: grpc.drain_grace: expected 0s to 1h, not `10` (a number with ms, s, m or h)",
            "kvtap.yaml:6:18: admin.listen: expected an ip:port such as 127.0.0.1:9400 or [::]:9400, not `localhost`",
            "kvtap.yaml:7:15: log.level: expected error, warn, info, debug or trace, not `loud`",
            "kvtap.yaml:7:29: log.format: expected text or json, not `xml`",
            "kvtap.yaml:7:34: log.colour: no such setting; known here: level, format",
            "kvtap.yaml:8:28: limits.blocks_per_rank: expected 1 to 4294967296 blocks, not `0`",
            "kvtap.yaml:8:46: limits.blocks_in_all: expected 1 to 4294967296 blocks, not `-1`",
            "kvtap.yaml:9:29: defaults.replay_timeout: expected 100ms to 10m, not `2 minutes` (a number with ms, s, m or h)",
            "kvtap.yaml:10:1: feed: no such setting; did you mean `feeds`?",
            "kvtap.yaml:12:13: feeds[0].worker: must not be empty",
            "kvtap.yaml:13:12: feeds[0].model: expected text, not a number: put it in quotes",
            "kvtap.yaml:14:13: feeds[0].engine: expected vllm, sglang, trtllm, dynamo or auto, not `llama`",
            "kvtap.yaml:15:15: feeds[0].endpoint: endpoint `127.0.0.1:5557` begins with neither tcp:// nor ipc://",
            "kvtap.yaml:16:17: feeds[0].block_size: expected 1 to 65536 tokens, not `0`",
            "kvtap.yaml:17:5: feeds[0].enpoint: no such setting; did you mean `endpoint`?",
            "kvtap.yaml:18:5: feeds[1].worker: is required",
            "kvtap.yaml:20:13: feeds[1].replay: endpoint `tcp://127.0.0.1:x`: the port is not a number between 0 and 65535",
            "kvtap.yaml:21:12: feeds[1].ranks: expected 1 to 1024 ranks, not a list",
            "kvtap.yaml:22:13: feeds[1].copies: expected count or set, not `both`",
            "kvtap.yaml:23:5: feeds[1].copies: is given twice, first in line 22",
            "kvtap.yaml:24:5: feeds[2]: expected a map of settings, not a number",
            "kvtap.yaml:24:5: feeds[2].worker: is required",
            "kvtap.yaml:24:5: feeds[2].model: is required",
            "kvtap.yaml:24:5: feeds[2].endpoint: is required",
        ],
    );
}

#[test]
fn what_is_no_yaml_is_one_fault_with_its_place() {
    for (text, line) in [
        ("feeds: [", "kvtap.yaml:1:8: unclosed bracket '['"),
        ("a: b: c", "kvtap.yaml:1:5: mapping values are not allowed in this context"),
        ("log:\n\tlevel: info", "kvtap.yaml:2:2: tabs disallowed within this context (block indentation)"),
        ("log: {}\n---\nlog: {}\n", "kvtap.yaml:3:1: holds more than one YAML document"),
        ("- 1", "kvtap.yaml:1:1: expected a map of settings, not a list"),
        ("log: *nobody", "kvtap.yaml:1:6: alias references unknown anchor"),
        ("log: text", "kvtap.yaml:1:6: log: expected a map of settings, not text"),
        ("feeds: {}", "kvtap.yaml:1:8: feeds: expected a list, not a map"),
        ("grpc: { listen: \"127.0.0.1:9400\" }", "kvtap.yaml:1:17: grpc.listen: expected a list, not text"),
        (
            "? [a]\n: b",
            "kvtap.yaml:1:3: (a list): no such setting; known here: grpc, admin, admin_rpc, log, limits, snapshot, nats, relay, defaults, discovery, feeds",
        ),
    ] {
        assert_faults(text, &[], &[line]);
    }
    let bottomless = "[".repeat(100_000);
    assert_faults(&bottomless, &[], &["kvtap.yaml:1:17: recursion limit exceeded"]);
}

#[test]
fn a_faulty_value_stays_one_line() {
    assert_faults(
        "log: { level: \"a\\nb\" }",
        &[],
        &["kvtap.yaml:1:15: log.level: expected error, warn, info, debug or trace, not `a?b`"],
    );
}

#[test]
fn an_anchors_fault_is_told_where_it_is_written() {
    let text = one_feed("").replace("endpoint: ", "endpoint: &e tcp://h:1\n    replay: *e\n    topic: ");
    assert_faults(
        &text,
        &[],
        &["kvtap.yaml:4:18: feeds[0].replay: tcp://h:1 is rank 0's event socket and rank 0's replay socket"],
    );
}

#[test]
fn sockets_of_ranks_must_not_collide_or_run_out() {
    assert_faults(
        &one_feed("replay: tcp://localhost:5558\nranks: 2"),
        &[],
        &[
            "kvtap.yaml:5:13: feeds[0].replay: tcp://localhost:5558 is rank 1's event socket and rank 0's replay socket; put the two at least 2 ports apart",
        ],
    );
    good(&one_feed("replay: tcp://localhost:5559\nranks: 2"), &[]);
    good(&one_feed("replay: tcp://10.0.0.1:5558\nranks: 2"), &[]);
    good(&one_feed("ranks: 2\nfirst_rank: 59977"), &[]);
    assert_faults(
        &one_feed("replay: tcp://127.0.0.1:65535\nranks: 3\nfirst_rank: 59977"),
        &[],
        &[
            "kvtap.yaml:4:15: feeds[0].endpoint: endpoint `tcp://127.0.0.1:5557`: port plus rank 59979 is above 65535",
            "kvtap.yaml:5:13: feeds[0].replay: endpoint `tcp://127.0.0.1:65535`: port plus rank 59977 is above 65535",
        ],
    );
}

#[test]
fn a_rank_has_one_feed_and_a_bound_socket_one_owner() {
    let two = |first: &str, second: &str| format!("{}  - {{worker: w, model: m, {second}}}\n", one_feed(first));
    assert_faults(
        &two("ranks: 2", "endpoint: \"tcp://127.0.0.1:7000\", first_rank: 1, ranks: 2"),
        &[],
        &["kvtap.yaml:6:14: feeds[1].worker: w rank 1 is feeds[0]'s already"],
    );
    good(&two("ranks: 2", "endpoint: \"tcp://127.0.0.1:7000\", first_rank: 2, ranks: 2"), &[]);
    let bound = "endpoint: \"tcp://127.0.0.1:5557\", bind: true";
    assert_faults(
        &two("bind: true\ntopic: x", &bound.replace("w,", "v,")).replace("- {worker: w", "- {worker: v"),
        &[],
        &[
            "kvtap.yaml:7:37: feeds[1].endpoint: tcp://localhost:5557 is feeds[0]'s already: a socket carries one rank's events",
        ],
    );
}

#[test]
fn one_address_serves_one_server() {
    assert_faults(
        "grpc: { listen: [\"127.0.0.1:1\", \"127.0.0.1:1\", \"127.0.0.1:0\", \"127.0.0.1:0\"] }\nadmin: { listen: \"127.0.0.1:1\" }",
        &[],
        &[
            "kvtap.yaml:1:33: grpc.listen: names 127.0.0.1:1 twice",
            "kvtap.yaml:2:18: admin.listen: 127.0.0.1:1 is in grpc.listen too",
        ],
    );
    assert_faults("grpc: { listen: [] }", &[], &["kvtap.yaml:1:17: grpc.listen: must have at least one item"]);
}

#[test]
fn what_cannot_be_followed_is_refused() {
    for (lines, fault) in [
        (
            "engine: dynamo",
            "kvtap.yaml:5:13: feeds[0].engine: dynamo's event plane is followed over NATS (`endpoint: nats://host:port`); else tap the engine behind it (vllm, sglang or trtllm)",
        ),
        (
            "replay: tcp://*:6000",
            "kvtap.yaml:5:13: feeds[0].replay: endpoint `tcp://*:6000` means every interface: that can be bound; to connect, name the host",
        ),
        (
            "bind: true\nreplay: tcp://127.0.0.1:0",
            "kvtap.yaml:6:13: feeds[0].replay: endpoint `tcp://127.0.0.1:0`: port 0 can be bound; to connect, name the port",
        ),
    ] {
        assert_faults(&one_feed(lines), &[], &[fault]);
    }
    assert_faults(
        &one_feed("transport: zeromq").replace("127.0.0.1", "10.0.0.1"),
        &[],
        &[
            "kvtap.yaml:5:16: feeds[0].endpoint: endpoint `tcp://10.0.0.1:5557` is not local: the zeromq transport serves loopback and ipc only",
        ],
    );
}

#[test]
fn a_socket_path_that_no_system_takes_is_refused() {
    let long = "x".repeat(107);
    assert_faults(
        &format!("grpc: {{ listen: [\"unix:///{long}\"] }}"),
        &[],
        &["kvtap.yaml:1:18: grpc.listen[0]: the path of a unix socket has at most 107 bytes, not 108"],
    );
}

#[test]
fn a_file_that_cannot_be_read_is_a_fault() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("kvtap.yaml");
    let load = |path: &Path| Config::load(path, &Env::default()).unwrap_err().to_string();
    let name = path.display();
    assert!(load(&path).starts_with(&format!("{name}: cannot be opened: ")));
    std::fs::write(&path, b"log: \xff").unwrap();
    assert!(load(&path).starts_with(&format!("{name}: cannot be read: ")));
    std::fs::write(&path, vec![b'#'; (4 << 20) + 1]).unwrap();
    assert_eq!(load(&path), format!("{name}: is larger than 4 MiB"));
    std::fs::write(&path, "log: { level: loud }").unwrap();
    assert!(load(&path).starts_with(&format!("{name}:1:15: log.level: ")));
    std::fs::write(&path, "log: { level: warn }").unwrap();
    assert_eq!(Config::load(&path, &Env::default()).unwrap().0.log.level, Level::Warn);
}

// === warnings ===

#[test]
fn plaintext_over_a_network_and_shared_names_are_warned_of() {
    let text = "\
feeds:
  - worker: a
    model: m
    address: 10.0.0.1:8000
    endpoint: tcp://10.0.0.1:5557
    replay: tcp://vllm-0.engines:5558
  - worker: b
    model: m
    address: 10.0.0.1:8000
    endpoint: tcp://0.0.0.0:6000
    bind: true
  - worker: c
    model: m
    endpoint: ipc:///run/kv.sock
  - worker: d
    model: m
    endpoint: ipc:///run/kv.sock
";
    assert_eq!(
        warnings(text),
        [
            "kvtap.yaml:5:15: feeds[0].endpoint: tcp://10.0.0.1:5557 is not local: ZMQ is neither encrypted nor authenticated",
            "kvtap.yaml:6:13: feeds[0].replay: tcp://vllm-0.engines:5558 is not local: ZMQ is neither encrypted nor authenticated",
            "kvtap.yaml:7:13: feeds[1].worker: `10.0.0.1:8000` means a too (feeds[0])",
            "kvtap.yaml:10:15: feeds[1].endpoint: tcp://0.0.0.0:6000 is not local: ZMQ is neither encrypted nor authenticated",
            "kvtap.yaml:17:15: feeds[3].endpoint: ipc:///run/kv.sock is feeds[2]'s already: a socket carries one rank's events",
        ]
        .join("\n")
    );
}

#[test]
fn a_url_is_polled_for_all_ranks() {
    let text = "feeds:\n  - { worker: a, model: m, engine: trtllm, endpoint: \"http://127.0.0.1:8000/kv_cache_events\", ranks: 2, poll_interval: 50ms }\n";
    let (config, warnings) = Config::parse(text, "kvtap.yaml", &Env::default()).unwrap();
    let feed = &config.feeds[0];
    let poll = feed.poll().expect("a feed that is polled");
    assert_eq!(poll.endpoint.to_string(), "http://127.0.0.1:8000/kv_cache_events");
    assert_eq!(poll.interval, Duration::from_millis(50));
    assert_eq!(feed.link(1), Ok(None));
    assert_eq!(warnings.iter().count(), 0);
}

#[test]
fn what_a_url_cannot_do_is_refused() {
    let text = "feeds:
  - { worker: a, model: m, engine: vllm, endpoint: \"http://127.0.0.1:1/kv\" }
  - { worker: b, model: m, engine: trtllm, endpoint: \"http://127.0.0.1:2/kv\", bind: true }
  - { worker: c, model: m, engine: trtllm, endpoint: \"http://127.0.0.1:3/kv\", replay: \"tcp://127.0.0.1:4\", topic: kv }
  - { worker: d, model: m, engine: trtllm, endpoint: \"https://127.0.0.1:5/kv\" }
  - { worker: e, model: m, engine: trtllm, endpoint: \"http://127.0.0.1:2/kv\" }
";
    let faults = Config::parse(text, "kvtap.yaml", &Env::default()).unwrap_err().to_string();
    for expected in [
        "feeds[0].endpoint: only TensorRT-LLM's events are polled over http: `engine: trtllm`",
        "feeds[1].endpoint: a URL is asked, it cannot be bound",
        "feeds[2].replay: there is no replay of what is polled over http",
        "feeds[2].topic: what is polled over http has no topics",
        "feeds[3].endpoint: endpoint `https://127.0.0.1:5/kv`: https is not supported yet, only http",
        "feeds[4].endpoint: http://127.0.0.1:2/kv is feeds[1]'s already: whoever polls takes the events away",
    ] {
        assert!(faults.contains(expected), "{expected}\nin\n{faults}");
    }
    assert_eq!(faults.lines().count(), 6, "{faults}");
}

// === who else may change what runs ===

#[test]
fn admin_calls_are_taken_on_sockets_of_this_host_only_and_on_their_own() {
    let text =
        "admin_rpc: { listen: [\"127.0.0.1:9402\", \"[::1]:0\", \"[::1]:0\", \"unix:///run/kvtap/admin.sock\"] }\n";
    assert_eq!(good(text, &[]).admin_rpc.listen.len(), 4);
    assert!(good("", &[]).admin_rpc.listen.is_empty());
    // Where callers are told apart they may come from anywhere.
    let tls = "tls: { cert: /c, key: /k, client_ca: /a }";
    for guard in ["token_file: /t", tls] {
        let text = format!("admin_rpc: {{ listen: [\"[::]:9402\"], {guard} }}\n");
        assert_eq!(good(&text, &[]).admin_rpc.listen.len(), 1);
    }
    let text = "admin_rpc:\n  listen:\n    - \"127.0.0.1:9400\"\n    - \"[::]:9402\"\n    - \"127.0.0.1:9401\"\n    - \"[::1]:1\"\n    - \"[::1]:1\"\n";
    let not_local = "is not local: nothing tells the callers of Admin apart, so they must come from this host \
                     (127.0.0.1, [::1] or unix:///path); other hosts need tls.client_ca or token_file";
    assert_faults(
        text,
        &[],
        &[
            "kvtap.yaml:3:7: admin_rpc.listen: 127.0.0.1:9400 is in grpc.listen too",
            &format!("kvtap.yaml:4:7: admin_rpc.listen: [::]:9402 {not_local}"),
            "kvtap.yaml:5:7: admin_rpc.listen: 127.0.0.1:9401 is in admin.listen too",
            "kvtap.yaml:7:7: admin_rpc.listen: names [::1]:1 twice",
        ],
    );
}

#[test]
fn discovery_is_off_unless_a_selector_says_what_to_look_for() {
    assert_eq!(good("", &[]).discovery, None);
    let discovery = good("discovery: { selector: \"kvtap=engine\", http_port: 8000 }\n", &[]).discovery.unwrap();
    assert_eq!((discovery.selector.as_str(), discovery.port, discovery.http_port), ("kvtap=engine", 5557, Some(8000)));
    assert_faults(
        "discovery:\n  port: 5557\n",
        &[],
        &["kvtap.yaml:2:3: discovery.selector: is required: it says which objects tell of engines"],
    );
    assert_eq!(warnings("discovery: { selector: a=b }\n"), "", "engines may come");
}

#[test]
fn what_a_running_process_cannot_follow_is_named_by_its_keys() {
    let before = good(&one_feed(""), &[]);
    for (text, keys) in [
        ("log: { level: debug }\nlimits: { blocks_per_rank: 5 }\ndefaults: { reconnect_max: 2s }\n", &[][..]),
        ("log: { format: json }\n", &["log.format"]),
        ("grpc: { drain_grace: 1s, max_message_bytes: 1MiB }\n", &["grpc.max_message_bytes", "grpc.drain_grace"]),
        ("admin: { listen: \"127.0.0.1:1\" }\n", &["admin.listen"]),
        ("admin: { connections: 9, request_time: 1s }\n", &["admin.connections", "admin.request_time"]),
        ("nats: { ping_interval: 9s }\n", &[]),
        ("relay: { servers: \"nats://127.0.0.1:4222\" }\n", &["relay"]),
        ("admin_rpc: { listen: [\"127.0.0.1:9402\"] }\n", &["admin_rpc.listen"]),
        ("admin_rpc: { token_file: /t }\n", &["admin_rpc.token_file"]),
        ("grpc: { watch: { watchers: 1 } }\n", &["grpc.watch"]),
        ("snapshot: { directory: /s }\n", &["snapshot.directory"]),
        ("discovery: { selector: a=b }\n", &["discovery.selector"]),
    ] {
        assert_eq!(before.fixed_changes(&good(text, &[])), keys, "{text}");
        for key in keys {
            let is_it =
                |path: &str| path.strip_prefix(key).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'));
            assert!(kvtap::config::keys().iter().any(|known| is_it(&known.path)), "{key} is no key");
        }
    }
    let fleet = |nats| good(&format!("{nats}relay: {{ servers: \"nats://127.0.0.1:4222\" }}\n"), &[]);
    assert_eq!(fleet("").fixed_changes(&fleet("nats: { ping_interval: 9s }\n")), ["nats", "relay"]);
    let discovering = good("discovery: { selector: a=b }\n", &[]);
    let after = good("discovery: { selector: a=c, namespace: n, model: m, port: 1 }\n", &[]);
    assert_eq!(discovering.fixed_changes(&after), ["discovery.selector", "discovery.namespace"]);
}

#[test]
fn a_feed_from_outside_is_read_under_the_same_rules_and_learns_nothing_of_the_process() {
    use kvtap::config::{Feed, Setting};
    let defaults = good("defaults: { disconnect_grace: 7s }\n", &[]).defaults;
    let settings = |more: &[(&str, &str)]| -> Vec<(String, Setting)> {
        let first = [("worker", "w"), ("endpoint", "tcp://127.0.0.1:5557")];
        let all = first.iter().chain(more);
        all.map(|(key, value)| ((*key).to_owned(), Setting::one(*value))).collect()
    };
    let (feed, _) = Feed::from_settings(settings(&[("model", "${HOME} $${x}")]), "a call", &defaults).unwrap();
    assert_eq!((feed.model.as_str(), feed.tuning.disconnect_grace), ("${HOME} $${x}", Duration::from_secs(7)));
    let faults = Feed::from_settings(settings(&[("ranks", "0"), ("modle", "m")]), "a call", &defaults).unwrap_err();
    let mut lines: Vec<String> = faults.iter().map(ToString::to_string).collect();
    lines.sort();
    assert_eq!(
        lines,
        [
            "a call: model: is required",
            "a call: modle: no such setting; did you mean `model`?",
            "a call: ranks: expected 1 to 1024 ranks, not `0`",
        ]
    );
}
