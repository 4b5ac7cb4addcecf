//! Screen layout, usable from 80 columns and 24 lines on.

use k8s_openapi::jiff::Timestamp;
use netpold_api::events::LostEvents;
use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Cell, Paragraph, Row, Table, TableState, Wrap};

use super::board::{CountRow, EventCounts, RowOrder, TopView};

/// Choices of the user, and the state of the source.
#[derive(Clone, Debug, Default)]
pub struct Choice {
    /// Selected view.
    pub view: TopView,
    /// Order of the rows.
    pub order: RowOrder,
    /// Whether the order is reversed.
    pub reversed: bool,
    /// Index of the marked row.
    pub selected: usize,
    /// Whether the display is paused.
    pub paused: bool,
    /// Name of the source.
    pub source: String,
    /// Reason why no lines arrive.
    pub problem: Option<String>,
}

/// Largest number of rows to scroll through, the first ones in the order.
pub(super) const SHOWN: usize = 500;

/// Columns from which on there is room for the longest reason.
const WIDE: u16 = 110;

/// Draws the counts; `now` is in milliseconds since the epoch.
pub fn draw(frame: &mut Frame<'_>, board: &EventCounts, choice: &Choice, now: i64) {
    let lost = lost_line(&board.lost);
    let lengths = [
        Constraint::Length(1),
        Constraint::Length(1),
        Constraint::Min(3),
        Constraint::Length(3),
        Constraint::Length(u16::from(lost.is_some())),
        Constraint::Length(1),
    ];
    let [head, tabs, body, detail, not_counted, keys] =
        Layout::vertical(lengths).areas(frame.area());
    let order = (choice.order, choice.reversed);
    let (rows, all, others) = board.rows(choice.view, order, now, SHOWN);
    frame.render_widget(head_line(board, choice, now), head);
    frame.render_widget(tabs_line(choice, all, others), tabs);
    table(frame, body, &rows, choice, now);
    frame.render_widget(detail_text(choice, &rows), detail);
    if let Some(lost) = lost {
        frame.render_widget(lost, not_counted);
    }
    let help = "1-4/Tab view  s sort  r reverse  Up/Down select  p pause  c clear  q quit";
    frame.render_widget(Line::from(help).style(Style::new().add_modifier(Modifier::DIM)), keys);
}

fn head_line(board: &EventCounts, choice: &Choice, now: i64) -> Line<'static> {
    let [denied, audited, allowed] = board.total.counts;
    let rate = board.total.recent(now) as f64 / 10.0;
    let bold = Style::new().add_modifier(Modifier::BOLD);
    let paused = if choice.paused { "  PAUSED" } else { "" };
    Line::from(vec![
        Span::styled("netpold top", bold),
        Span::raw(format!("  {}  ", choice.source)),
        Span::styled(format!("{denied} denied"), Color::Red),
        Span::raw(" "),
        Span::styled(format!("{audited} audited"), Color::Yellow),
        Span::raw(" "),
        Span::styled(format!("{allowed} new flows"), Color::Green),
        Span::raw(format!("  {rate:.1}/s{paused}")),
    ])
}

fn tabs_line(choice: &Choice, all: usize, others: u64) -> Line<'static> {
    let mut spans = Vec::new();
    for (number, view) in (1..).zip(TopView::ALL) {
        let style = match view == choice.view {
            true => Style::new().add_modifier(Modifier::REVERSED),
            false => Style::new(),
        };
        spans.push(Span::styled(format!(" {number} {} ", view.title()), style));
    }
    let others = if others == 0 { String::new() } else { format!(", {others} events of others") };
    spans.push(Span::raw(format!("  {all} rows{others}")));
    Line::from(spans)
}

/// Returns the columns of names, with their widths.
fn names(view: TopView, width: u16) -> Vec<(&'static str, Constraint)> {
    let (pod, peer) = (("POD", Constraint::Fill(5)), ("PEER", Constraint::Fill(5)));
    match view {
        TopView::Drops | TopView::Flows => {
            let longest = if width < WIDE { 9 } else { 22 };
            let (port, reason) = (Constraint::Length(10), Constraint::Length(longest));
            vec![pod, peer, ("PORT", port), ("REASON", reason)]
        }
        TopView::Pods => vec![pod],
        TopView::Policies => vec![("POLICY", Constraint::Fill(1))],
    }
}

fn table(frame: &mut Frame<'_>, area: Rect, rows: &[&CountRow], choice: &Choice, now: i64) {
    let by_verdict = matches!(choice.view, TopView::Pods | TopView::Policies);
    let marked = |title: &str, order: RowOrder| match choice.order == order {
        true => format!("{title}{}", if choice.reversed { '^' } else { 'v' }),
        false => title.to_owned(),
    };
    let mut columns = vec![
        (marked("COUNT", RowOrder::Count), Constraint::Length(7)),
        (marked("/10S", RowOrder::Rate), Constraint::Length(5)),
        (marked("LAST", RowOrder::Last), Constraint::Length(8)),
    ];
    if by_verdict {
        let verdicts = ["DENIED", "AUDITED", "ALLOWED"];
        columns.extend(verdicts.map(|title| (title.to_owned(), Constraint::Length(8))));
    }
    for (number, (title, width)) in names(choice.view, area.width).into_iter().enumerate() {
        let title = if number == 0 { marked(title, RowOrder::Name) } else { title.to_owned() };
        columns.push((title, width));
    }
    let cells = |row: &CountRow| {
        let counts = [row.count().to_string(), row.recent(now).to_string(), clock(row.last)];
        let verdicts = row.counts.iter().filter(|_| by_verdict).map(ToString::to_string);
        let cells = counts.into_iter().chain(verdicts).chain(row.names.iter().cloned());
        Row::new(cells.map(Cell::from).collect::<Vec<_>>())
    };
    let (titles, widths): (Vec<_>, Vec<_>) = columns.into_iter().unzip();
    let bold = Style::new().add_modifier(Modifier::BOLD);
    let table = Table::new(rows.iter().map(|row| cells(row)), widths)
        .header(Row::new(titles).style(bold))
        .row_highlight_style(Style::new().add_modifier(Modifier::REVERSED));
    let selected = (!rows.is_empty()).then(|| choice.selected.min(rows.len() - 1));
    let mut state = TableState::default().with_selected(selected);
    frame.render_stateful_widget(table, area, &mut state);
}

/// Renders the marked row in full, or the reason why no lines arrive.
fn detail_text(choice: &Choice, rows: &[&CountRow]) -> Paragraph<'static> {
    let row = rows.get(choice.selected.min(rows.len().saturating_sub(1)));
    let text = match (&choice.problem, row) {
        (Some(problem), _) => problem.clone(),
        (None, Some(row)) if row.why.is_empty() => row.names.join(" "),
        (None, Some(row)) => format!("{}: {}", row.names.join(" "), row.why),
        (None, None) => "no events of this kind yet".to_owned(),
    };
    Paragraph::new(text).wrap(Wrap { trim: true })
}

/// Renders the numbers of events that are not counted.
fn lost_line(lost: &LostEvents) -> Option<Line<'static>> {
    let parts = [
        (lost.kernel, "drops beyond the kernel's limit"),
        (lost.flows, "flows"),
        (lost.slow, "events read too late"),
    ];
    let parts = parts.into_iter().filter(|(count, _)| *count > 0);
    let parts: Vec<String> = parts.map(|(count, what)| format!("{count} {what}")).collect();
    let text = format!("not counted: {}", parts.join(", "));
    (!parts.is_empty()).then(|| Line::from(text).style(Color::Yellow))
}

/// Formats the time of day, UTC.
fn clock(unix_millis: i64) -> String {
    let time = Timestamp::from_millisecond(unix_millis).unwrap_or_default();
    time.strftime("%H:%M:%S").to_string()
}
