//! `kvtap top`: who is fresh, what is lost, how busy everything is; again and again, on a terminal.

mod frame;
mod look;

use std::io::{self, IsTerminal, Write};
use std::time::Duration;

use ratatui::DefaultTerminal;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use ratatui::layout::Rect;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::client::Server;
use super::{Failure, Outcome, signals, units};
use crate::client::Connection;
use crate::proto::v1;
use crate::proto::v1::query_service_client::QueryServiceClient;
use crate::serve::response::report_of;
use frame::View;
use look::Watched;

/// The arguments of `kvtap top`.
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    server: Server,
    /// Show workers of this model only.
    #[arg(long, value_name = "M", default_value = "", hide_default_value = true)]
    model: String,
    /// Show only this worker, by name, address or alias; may be repeated.
    #[arg(long = "worker", value_name = "NAME")]
    workers: Vec<String>,
    /// The pause between two looks.
    #[arg(long, value_name = "TIME", default_value = "2s", value_parser = units::time)]
    interval: Duration,
    /// Print one frame and stop; with --json, one object.
    #[arg(long)]
    once: bool,
    /// Print one JSON object a look instead of frames.
    #[arg(long)]
    json: bool,
}

/// The shortest pause between two looks.
const SHORTEST: Duration = Duration::from_millis(100);
/// How often the keyboard's thread looks whether it is still wanted.
const KEY_PATIENCE: Duration = Duration::from_millis(200);
/// Columns of a frame that is printed where there is no terminal.
const PRINTED_WIDTH: u16 = 160;

/// What a person asks for.
#[derive(Clone, Copy)]
enum Wish {
    Quit,
    Pause,
    Redraw,
    /// Scroll by so many screens, and so many lines.
    Scroll(isize, isize),
}

struct Client {
    server: Server,
    client: QueryServiceClient<Connection>,
    request: v1::ListWorkersRequest,
}

/// Looks, and shows, until told to stop.
///
/// # Errors
/// [`Failure`] where the server cannot be reached at first, or refuses, or where there is no terminal to draw on.
pub async fn run(args: Args) -> Outcome {
    let interactive = !args.once && !args.json;
    if interactive && !io::stdout().is_terminal() {
        return Err(Failure::Usage(
            "standard output is no terminal: --once prints one frame, --json objects".to_owned(),
        ));
    }
    let request = v1::ListWorkersRequest { model: args.model.clone(), workers: args.workers.clone() };
    let mut client = Client { server: args.server.clone(), client: args.server.connect().await?, request };
    let mut watched = Watched::default();
    let interval = args.interval.max(SHORTEST);
    client.look(&mut watched).await?;
    if interactive {
        let mut terminal = ratatui::try_init()?;
        let view = View { server: args.server.name().to_owned(), keys: true, ..View::default() };
        let ended = follow(&mut terminal, &mut client, watched, view, interval).await;
        ratatui::restore();
        return ended;
    }
    let stop = CancellationToken::new();
    tokio::spawn(signals::cancel(stop.clone()));
    loop {
        print(&args, &watched)?;
        if args.once {
            return Ok(());
        }
        tokio::select! {
            () = stop.cancelled() => return Ok(()),
            () = tokio::time::sleep(interval) => client.look(&mut watched).await?,
        }
    }
}

fn print(args: &Args, watched: &Watched) -> Outcome {
    let mut out = io::stdout().lock();
    if args.json {
        serde_json::to_writer(&mut out, &watched.last).map_err(io::Error::from)?;
        writeln!(out)?;
    } else {
        let view = View { server: args.server.name().to_owned(), ..View::default() };
        let width = ratatui::crossterm::terminal::size().ok().filter(|_| out.is_terminal());
        write!(out, "{}", frame::text(watched, &view, width.map_or(PRINTED_WIDTH, |(width, _)| width)))?;
    }
    Ok(out.flush()?)
}

/// The screen: redrawn at each look, at each key, and where the terminal has changed.
async fn follow(
    terminal: &mut DefaultTerminal,
    client: &mut Client,
    mut watched: Watched,
    mut view: View,
    interval: Duration,
) -> Outcome {
    let stop = CancellationToken::new();
    let _ended = stop.clone().drop_guard();
    tokio::spawn(signals::cancel(stop.clone()));
    let mut wishes = wishes(stop.clone());
    let mut ticks = tokio::time::interval_at(tokio::time::Instant::now() + interval, interval);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        let feeds = watched.last.as_ref().map_or(0, |look| look.workers.len());
        let room = frame::room(terminal.size()?.height);
        view.top = view.top.min(feeds.saturating_sub(room.max(1)));
        terminal.draw(|frame| frame::draw(frame, &watched, &view))?;
        tokio::select! {
            () = stop.cancelled() => return Ok(()),
            wish = wishes.recv() => match wish {
                None | Some(Wish::Quit) => return Ok(()),
                Some(Wish::Pause) => view.paused = !view.paused,
                // All of it: a window that was small for a moment has forgotten what was there. `clear` would ask the
                // terminal where its cursor is, and the thread that reads keys would get the answer.
                Some(Wish::Redraw) => {
                    let size = terminal.size()?;
                    terminal.resize(Rect::new(0, 0, size.width, size.height))?;
                }
                Some(Wish::Scroll(screens, lines)) => {
                    let by = screens.saturating_mul(room as isize).saturating_add(lines);
                    view.top = view.top.saturating_add_signed(by);
                }
            },
            _ = ticks.tick(), if !view.paused => {
                // A server that is away for a while is looked for again; what it said last stays on the screen.
                view.failure = client.look(&mut watched).await.err().map(|failure| failure.to_string());
            }
        }
    }
}

/// What a person wishes, from the keyboard. Its thread ends soon after `stop`.
fn wishes(stop: CancellationToken) -> mpsc::Receiver<Wish> {
    let (sender, receiver) = mpsc::channel(64);
    std::thread::spawn(move || {
        while !stop.is_cancelled() {
            let wish = match event::poll(KEY_PATIENCE) {
                Ok(false) => continue,
                Ok(true) => event::read().map(wish),
                Err(error) => Err(error),
            };
            match wish {
                Ok(None) => {}
                Ok(Some(wish)) if sender.blocking_send(wish).is_ok() => {}
                // Without a keyboard nobody could ever quit: the closed channel does.
                Ok(Some(_)) | Err(_) => return,
            }
        }
    });
    receiver
}

fn wish(event: Event) -> Option<Wish> {
    let KeyEvent { code, modifiers, .. } = match event {
        Event::Resize(..) => return Some(Wish::Redraw),
        Event::Key(key) if key.kind != KeyEventKind::Release => key,
        _ => return None,
    };
    match code {
        KeyCode::Char('c') if modifiers.contains(KeyModifiers::CONTROL) => Some(Wish::Quit),
        KeyCode::Char('l') if modifiers.contains(KeyModifiers::CONTROL) => Some(Wish::Redraw),
        KeyCode::Char('q') | KeyCode::Esc => Some(Wish::Quit),
        KeyCode::Char('p') => Some(Wish::Pause),
        KeyCode::Up | KeyCode::Char('k') => Some(Wish::Scroll(0, -1)),
        KeyCode::Down | KeyCode::Char('j') => Some(Wish::Scroll(0, 1)),
        KeyCode::PageUp => Some(Wish::Scroll(-1, 0)),
        KeyCode::PageDown => Some(Wish::Scroll(1, 0)),
        KeyCode::Home => Some(Wish::Scroll(0, isize::MIN)),
        KeyCode::End => Some(Wish::Scroll(0, isize::MAX)),
        _ => None,
    }
}

// === impl Client ===

impl Client {
    async fn look(&mut self, watched: &mut Watched) -> Outcome {
        let answer = self.client.list_workers(self.request.clone()).await;
        let v1::ListWorkersResponse { workers, version, uptime_ms } =
            answer.map_err(|status| self.server.refused(&status))?.into_inner();
        watched.take(workers.into_iter().map(report_of).collect(), version, uptime_ms);
        Ok(())
    }
}
