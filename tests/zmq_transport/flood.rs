//! More messages than anybody reads.

use kvtap::feed::zmq::{LinkEvent, Mode, QueueLimits, SubOptions, Transport};

use crate::libzmq::{Libzmq, Tap, endpoint, within};

const MESSAGES: u64 = 100_000;

#[tokio::test]
async fn what_a_paused_reader_missed_is_counted_exactly_where_it_is_missing() {
    for transport in [Transport::Own, Transport::Zeromq] {
        for queue in
            [QueueLimits { messages: 1_000, bytes: usize::MAX }, QueueLimits { messages: usize::MAX, bytes: 200_000 }]
        {
            let mut publisher = Libzmq::publisher("bind", &endpoint("tcp://127.0.0.1:*")).await;
            let options = SubOptions { transport, queue, ..SubOptions::new(publisher.endpoint.clone(), Mode::Connect) };
            let mut tap = Tap::new(options);
            tap.connected().await;
            publisher.subscribed().await;

            // Nobody reads while the flood is sent.
            assert_eq!(publisher.ask(&format!("flood {MESSAGES} 64")).await, "sent");
            within("a full queue", async {
                while tap.events.bytes() < 150_000 {
                    tokio::task::yield_now().await;
                }
            })
            .await;
            assert!(tap.events.len() as u64 <= 1_000 && tap.events.bytes() <= 260_000);

            let (mut next, mut lost) = (0, 0);
            within("the end of the flood", async {
                while next < MESSAGES {
                    match tap.next().await {
                        LinkEvent::Message(frames) => {
                            assert_eq!(frames[1], next.to_be_bytes()[..], "in order, and nothing missing in silence");
                            next += 1;
                        }
                        LinkEvent::Overflowed { messages } => {
                            next += messages;
                            lost += messages;
                        }
                        other => panic!("{other:?}"),
                    }
                }
            })
            .await;
            assert_eq!(next, MESSAGES, "{transport:?}");
            assert!(lost > 0, "{transport:?}: the queue was full");

            publisher.send(&[b"after"]).await;
            assert_eq!(tap.message().await, [&b"after"[..]], "{transport:?}");
        }
    }
}
