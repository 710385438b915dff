//! One frame of `kvtap top`: a line at a glance, the feeds, what happened.

use ratatui::Frame;
use ratatui::buffer::Buffer;
use ratatui::layout::{Alignment, Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Cell, Paragraph, Row, Table, Widget};

use super::look::{Look, Seen, Watched};
use crate::admin::report::Queue;
use crate::cli::table::{age, number};

/// What is shown besides what was seen.
#[derive(Clone, Debug, Default)]
pub(super) struct View {
    /// The server, as it was named.
    pub(super) server: String,
    /// The first feed that is shown.
    pub(super) top: usize,
    pub(super) paused: bool,
    /// Why the last look failed.
    pub(super) failure: Option<String>,
    /// Whether somebody can press keys.
    pub(super) keys: bool,
}

/// Lines beside the feeds and the happenings: the glance, a space, the heads.
const AROUND: u16 = 3;
/// Lines of happenings on a screen that is high enough to have some.
const HAPPENINGS: u16 = 6;
/// The lowest screen that is.
const HIGH: u16 = 16;

/// A column: its head, its side, the room it takes, and when it goes where there is no room for all: the highest first.
struct Column {
    head: &'static str,
    align: Alignment,
    width: u16,
    goes: u8,
}

const COLUMNS: [Column; 12] = [
    column("WORKER", Alignment::Left, 16, 0),
    column("RANK", Alignment::Right, 4, 5),
    column("STATE", Alignment::Left, 12, 1),
    column("HEARD", Alignment::Right, 7, 4),
    column("EVENTS/S", Alignment::Right, 8, 7),
    column("BLOCKS", Alignment::Right, 8, 2),
    column("SIZE", Alignment::Right, 5, 9),
    column("LOST", Alignment::Right, 6, 3),
    column("DROPPED", Alignment::Right, 7, 8),
    column("QUEUE", Alignment::Right, 5, 10),
    column("MEMORY", Alignment::Right, 9, 11),
    column("WHY", Alignment::Left, 12, 6),
];
/// Columns between two columns.
const SPACING: u16 = 2;
/// The most that workers' names take; the rest is for the reasons.
const LONGEST_NAME: u16 = 36;

const fn column(head: &'static str, align: Alignment, width: u16, goes: u8) -> Column {
    Column { head, align, width, goes }
}

/// Draws what was seen.
pub(super) fn draw(frame: &mut Frame<'_>, watched: &Watched, view: &View) {
    let area = frame.area();
    paint(watched, view, area, frame.buffer_mut());
}

/// The same as lines of text, `width` columns wide and as high as it takes.
pub(super) fn text(watched: &Watched, view: &View, width: u16) -> String {
    let feeds = watched.last.as_ref().map_or(0, |look| look.workers.len());
    let height = u16::try_from(feeds).unwrap_or(u16::MAX).saturating_add(AROUND).min(u16::MAX / width.max(1));
    let area = Rect::new(0, 0, width, height);
    let mut buffer = Buffer::empty(area);
    paint(watched, view, area, &mut buffer);
    let mut text = String::new();
    for y in 0..height {
        let line: String = (0..width).filter_map(|x| buffer.cell((x, y))).map(|cell| cell.symbol()).collect();
        text.push_str(line.trim_end());
        text.push('\n');
    }
    text
}

/// How many feeds a screen of this height has room for.
pub(super) fn room(height: u16) -> usize {
    usize::from(height.saturating_sub(AROUND + happenings(height) + 1))
}

fn happenings(height: u16) -> u16 {
    if height < HIGH { 0 } else { HAPPENINGS }
}

fn paint(watched: &Watched, view: &View, area: Rect, buffer: &mut Buffer) {
    let below = if view.keys { happenings(area.height) + 1 } else { 0 };
    let [glance, _, feeds, happenings, help] = Layout::vertical([
        Constraint::Length(1),
        Constraint::Length(1),
        Constraint::Min(1),
        Constraint::Length(below.saturating_sub(1)),
        Constraint::Length(below.min(1)),
    ])
    .areas(area);
    let Some(look) = &watched.last else {
        Paragraph::new(clean(view.failure.as_deref().unwrap_or("Asking for the first time …"))).render(glance, buffer);
        return;
    };
    at_a_glance(look, view).render(glance, buffer);
    table(look, view, area.width).render(feeds, buffer);
    if view.keys {
        let dim = Style::new().add_modifier(Modifier::DIM);
        let mut lines = vec![Line::styled("Changes since this began, the newest first:", dim)];
        lines.extend(watched.happenings.iter().map(|told| Line::raw(clean(told))));
        if watched.happenings.is_empty() {
            lines.push(Line::styled("none", dim));
        }
        Paragraph::new(lines).render(happenings, buffer);
        Line::styled("q quit   ↑ ↓ PgUp PgDn scroll   p pause", dim).render(help, buffer);
    }
}

fn at_a_glance<'v>(look: &Look, view: &'v View) -> Line<'v> {
    let all = look.workers.len();
    let bold = Style::new().add_modifier(Modifier::BOLD);
    let sum = |of: fn(&Seen) -> u64| look.workers.iter().map(of).sum::<u64>();
    let lost = sum(|seen| seen.report.missed);
    let events: f64 = look.workers.iter().filter_map(|seen| seen.events_per_second).sum();
    let mut line = Line::from(vec![
        Span::styled(format!("kvtap {} ", clean(&look.version)), bold),
        Span::raw(format!("at {}, up {}   ", clean(&view.server), age(Some(look.uptime_ms)))),
        Span::styled(
            format!("{} of {all} live", look.live),
            color(if look.live == all { "live" } else { "incomplete" }),
        ),
        Span::styled(format!("   {lost} lost"), if lost > 0 { color("gone") } else { Style::new() }),
        Span::raw(format!(
            "   {} events/s   {} blocks   {}",
            // The sum of nothing is -0.
            short(events.abs()),
            short(sum(|seen| seen.report.blocks) as f64),
            bytes(sum(|seen| seen.report.memory_bytes))
        )),
    ]);
    if let Some(failure) = &view.failure {
        line.push_span(Span::styled(format!("   no answer: {}", clean(failure)), color("gone")));
    } else if view.paused {
        line.push_span(Span::styled("   paused", bold));
    }
    line
}

fn table<'l>(look: &'l Look, view: &View, width: u16) -> Table<'l> {
    let columns = shown(width);
    let rows = look.workers.iter().skip(view.top).map(|seen| row(seen, &columns));
    let heads = columns.iter().map(|column| Cell::new(Line::from(column.head).alignment(column.align)));
    let longest = look.workers.iter().map(|seen| seen.report.worker.chars().count()).max().unwrap_or(0);
    let longest = u16::try_from(longest).unwrap_or(u16::MAX).min(LONGEST_NAME);
    // What is left over goes to names that need it, and then to the reasons.
    let left = width.saturating_sub(needed(&columns));
    let widths = columns.iter().map(|column| match column.head {
        "WORKER" => Constraint::Length(column.width.max(longest.min(column.width.saturating_add(left)))),
        "WHY" => Constraint::Min(column.width),
        _ => Constraint::Length(column.width),
    });
    Table::new(rows, widths)
        .header(Row::new(heads).style(Style::new().add_modifier(Modifier::BOLD)))
        .column_spacing(SPACING)
}

/// The columns that a screen of this width has room for.
fn shown(width: u16) -> Vec<&'static Column> {
    let mut columns: Vec<_> = COLUMNS.iter().collect();
    while columns.len() > 1 && needed(&columns) > width {
        let least = columns.iter().map(|column| column.goes).max();
        columns.retain(|column| Some(column.goes) != least);
    }
    columns
}

fn needed(columns: &[&Column]) -> u16 {
    columns.iter().map(|column| column.width + SPACING).sum::<u16>().saturating_sub(SPACING)
}

fn row<'s>(seen: &'s Seen, columns: &[&Column]) -> Row<'s> {
    let report = &seen.report;
    let cells = columns.iter().map(|column| {
        let (text, style) = match column.head {
            "WORKER" => (clean(&report.worker), Style::new()),
            "RANK" => (report.rank.to_string(), Style::new()),
            "STATE" => (format!("{} {}", sign(&report.state), clean(&report.state)), color(&report.state)),
            "HEARD" => (age(report.age_ms), Style::new()),
            "EVENTS/S" => (seen.events_per_second.map_or_else(|| "-".to_owned(), short), Style::new()),
            "BLOCKS" => (short(report.blocks as f64), Style::new()),
            "SIZE" => (number(report.block_size.map(u64::from)), Style::new()),
            "LOST" => (short(report.missed as f64), alarming(report.missed > 0)),
            "DROPPED" => (short(report.dropped.values().sum::<u64>() as f64), Style::new()),
            "QUEUE" => (format!("{:.0}%", fill(&report.queue) * 100.0), alarming(fill(&report.queue) > 0.5)),
            "MEMORY" => (bytes(report.memory_bytes), Style::new()),
            _ => (clean(&report.why), Style::new()),
        };
        Cell::new(Line::from(text).alignment(column.align)).style(style)
    });
    Row::new(cells)
}

fn alarming(it_is: bool) -> Style {
    if it_is { color("gone") } else { Style::new() }
}

/// How full a queue is, 0 to 1.
fn fill(queue: &Queue) -> f64 {
    let part = |have: u64, limit: u64| if limit == 0 { 0.0 } else { have as f64 / limit as f64 };
    part(queue.bytes, queue.limit_bytes).max(part(queue.messages, queue.limit_messages))
}

/// Text of a server or of its configuration, without what a terminal would obey or turn around.
fn clean(text: &str) -> String {
    let harmful = |c: char| {
        c.is_control() || matches!(c, '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
    };
    text.chars().map(|c| if harmful(c) { '·' } else { c }).collect()
}

/// A sign beside each state's word, the same as on the status page: not everybody sees its colour.
fn sign(state: &str) -> char {
    match state {
        "live" => '●',
        "replaying" => '◐',
        "connecting" => '○',
        "incomplete" => '▲',
        "degraded" => '◆',
        "gone" => '✕',
        _ => '?',
    }
}

fn color(state: &str) -> Style {
    match state {
        "live" => Style::new().fg(Color::Green),
        "replaying" => Style::new().fg(Color::Blue),
        "incomplete" | "degraded" => Style::new().fg(Color::Yellow),
        "gone" => Style::new().fg(Color::Red),
        _ => Style::new(),
    }
}

/// `7`, `2.3K`, `741K`, `1.2M`.
fn short(number: f64) -> String {
    let mut scaled = number;
    for unit in ["", "K", "M", "G"] {
        if scaled < 999.5 {
            let places = usize::from(scaled < 99.95 && scaled.fract() >= 0.05);
            return format!("{scaled:.places$}{unit}");
        }
        scaled /= 1000.0;
    }
    format!("{scaled:.0}T")
}

fn bytes(bytes: u64) -> String {
    let mut scaled = bytes as f64;
    for unit in ["B", "KiB", "MiB"] {
        if scaled < 1023.5 {
            return format!("{scaled:.0} {unit}");
        }
        scaled /= 1024.0;
    }
    format!("{scaled:.1} GiB")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::admin::report::RankReport;

    fn watched() -> Watched {
        let mut watched = Watched::default();
        let live = RankReport {
            worker: "pod-a".to_owned(),
            state: "live".to_owned(),
            why: "every message of this epoch was applied".to_owned(),
            age_ms: Some(47),
            blocks: 12_345,
            block_size: Some(16),
            memory_bytes: 3 << 20,
            queue: Queue { messages: 1, bytes: 60, limit_messages: 10, limit_bytes: 100 },
            ..RankReport::default()
        };
        let hostile = RankReport {
            worker: "\u{1b}[2J\u{202e}evil".to_owned(),
            state: "gone".to_owned(),
            missed: 3,
            ..live.clone()
        };
        watched.take(vec![live, hostile], "0.1.0".to_owned(), 60_000);
        watched
    }

    #[test]
    fn a_frame_says_who_is_fresh_and_what_is_lost() {
        let view = View { server: "127.0.0.1:9400".to_owned(), ..View::default() };
        let text = text(&watched(), &view, 150);
        let lines: Vec<_> = text.lines().collect();
        assert!(lines[0].starts_with("kvtap 0.1.0 at 127.0.0.1:9400, up 1 min   1 of 2 live   3 lost"), "{text}");
        assert!(lines[2].starts_with("WORKER"), "{text}");
        assert!(lines[3].contains("✕ gone"), "{text}");
        let words: Vec<_> = lines[4].split_whitespace().collect();
        let expected =
            ["pod-a", "0", "●", "live", "47", "ms", "-", "12.3K", "16", "0", "0", "60%", "3", "MiB", "every"];
        assert_eq!(&words[..expected.len()], expected, "{text}");
    }

    #[test]
    fn nothing_that_a_terminal_obeys_comes_through() {
        let text = text(&watched(), &View::default(), 150);
        assert!(text.contains("·[2J·evil"), "{text}");
        assert!(!text.contains(['\u{1b}', '\u{202e}']));
    }

    #[test]
    fn a_narrow_or_low_screen_is_no_failure() {
        for (width, height) in [(1, 1), (20, 3), (80, 24), (300, 2)] {
            let area = Rect::new(0, 0, width, height);
            let view = View { keys: true, failure: Some("gone".to_owned()), ..View::default() };
            let mut drawn = Buffer::empty(area);
            paint(&watched(), &view, area, &mut drawn);
            let text: String = drawn.content().iter().map(|cell| cell.symbol()).collect();
            assert!(width < 20 || text.contains("kvtap"), "{width} by {height}: {text}");
            assert!(height < 24 || text.contains("gone"), "{width} by {height}: {text}");
        }
    }

    #[test]
    fn a_narrow_screen_keeps_what_matters_most() {
        let heads = |width| {
            let text = text(&watched(), &View::default(), width);
            text.lines().nth(2).unwrap().split_whitespace().map(str::to_owned).collect::<Vec<_>>()
        };
        assert_eq!(heads(80), ["WORKER", "RANK", "STATE", "HEARD", "BLOCKS", "LOST", "WHY"]);
        assert_eq!(heads(40), ["WORKER", "STATE", "BLOCKS"]);
        assert_eq!(heads(160).len(), COLUMNS.len());
        let narrow = text(&watched(), &View::default(), 80);
        assert!(narrow.lines().nth(4).unwrap().starts_with("pod-a  "), "{narrow}");
    }

    #[test]
    fn numbers_are_short() {
        let numbers = [0.0, 7.25, 999.0, 12_345.0, 741_000.0, 1_200_000.0].map(short);
        assert_eq!(numbers, ["0", "7.2", "999", "12.3K", "741K", "1.2M"]);
        assert_eq!([0, 2048, 5 << 30].map(bytes), ["0 B", "2 KiB", "5.0 GiB"]);
    }
}
