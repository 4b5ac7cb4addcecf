//! Terminal: reads keys, shows the screen, and restores the terminal at the end.

use std::io::{IsTerminal, stdin, stdout};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, TryRecvError, sync_channel};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use k8s_openapi::jiff::Timestamp;
use ratatui::DefaultTerminal;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use tokio::signal;

use super::args::TopArgs;
use super::board::{EventCounts, TopView};
use super::feed::{self, FeedLine};
use super::screen::{Choice, SHOWN, draw};
use crate::observe::open_stream;

/// Time between two frames, and longest delay of a signal.
const FRAME: Duration = Duration::from_millis(250);
/// Lines in the queue to the counter; when it is full, the stream waits.
const WAITING: usize = 1024;
/// Lines that are counted between two reads of keys.
const AT_ONCE: usize = 4096;

/// Terminal in raw mode. A drop restores it; a panic restores it earlier.
#[derive(Debug)]
pub struct Terminal(DefaultTerminal);

impl Terminal {
    /// Takes the terminal: alternate screen, no echo, each key at once.
    ///
    /// # Errors
    /// Standard input or output is no terminal.
    pub fn enter() -> Result<Self> {
        if !stdin().is_terminal() || !stdout().is_terminal() {
            bail!("standard input and output must be a terminal; `netpold observe` needs none");
        }
        ratatui::try_init().map(Self).context("cannot use the terminal")
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        ratatui::restore();
    }
}

/// Shows the screen until a key or a signal ends it.
///
/// # Errors
/// No agent answers, or there is no terminal.
pub fn run(args: &TopArgs) -> Result<()> {
    static ENDS: AtomicBool = AtomicBool::new(false);
    let request = args.request()?;
    let (sender, news) = sync_channel(WAITING);
    let source = match args.cluster.is_requested() {
        true => {
            feed::send_cluster_lines(args.cluster.clone(), &request, sender)?;
            "cluster".to_owned()
        }
        false => {
            let lines = open_stream(&args.socket, &request, false)?;
            let socket = args.socket.clone();
            std::thread::spawn(move || feed::send_node_lines(lines, &socket, &request, &sender));
            "this node".to_owned()
        }
    };
    end_with_signals(&ENDS)?;
    let mut terminal = Terminal::enter()?;
    show(&mut terminal.0, &news, &ENDS, source)
}

/// Sets a flag at SIGTERM, SIGINT or SIGHUP.
#[cfg(unix)]
fn end_with_signals(ends: &'static AtomicBool) -> Result<()> {
    use signal::unix::{SignalKind, signal};

    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let signals = {
        let _entered = runtime.enter();
        let kinds = [SignalKind::terminate(), SignalKind::interrupt(), SignalKind::hangup()];
        kinds.map(signal)
    };
    let [terminate, interrupt, hangup] = signals;
    let (mut terminate, mut interrupt, mut hangup) = (terminate?, interrupt?, hangup?);
    std::thread::spawn(move || {
        runtime.block_on(async {
            tokio::select! {
                _ = terminate.recv() => {}
                _ = interrupt.recv() => {}
                _ = hangup.recv() => {}
            }
        });
        ends.store(true, Ordering::Relaxed);
    });
    Ok(())
}

/// Sets a flag at Ctrl-C.
#[cfg(not(unix))]
fn end_with_signals(ends: &'static AtomicBool) -> Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    std::thread::spawn(move || {
        if runtime.block_on(signal::ctrl_c()).is_ok() {
            ends.store(true, Ordering::Relaxed);
        }
    });
    Ok(())
}

fn show(
    terminal: &mut DefaultTerminal,
    news: &Receiver<FeedLine>,
    ends: &AtomicBool,
    source: String,
) -> Result<()> {
    let (mut board, mut choice) = (EventCounts::default(), Choice { source, ..Choice::default() });
    while !ends.load(Ordering::Relaxed) {
        if !choice.paused {
            apply_lines(news, &mut board, &mut choice);
        }
        let now = Timestamp::now().as_millisecond();
        terminal.draw(|frame| draw(frame, &board, &choice, now))?;
        let until = Instant::now() + FRAME;
        while event::poll(until.saturating_duration_since(Instant::now()))? {
            match event::read()? {
                Event::Key(key) if key.kind != KeyEventKind::Release => {
                    if ends_by(key, &mut choice, &mut board) {
                        return Ok(());
                    }
                    break;
                }
                Event::Resize(..) => break,
                Event::Key(_)
                | Event::FocusGained
                | Event::FocusLost
                | Event::Mouse(_)
                | Event::Paste(_) => {}
            }
        }
    }
    Ok(())
}

fn apply_lines(news: &Receiver<FeedLine>, board: &mut EventCounts, choice: &mut Choice) {
    for _ in 0..AT_ONCE {
        match news.try_recv() {
            Ok(Ok(line)) => {
                choice.problem = None;
                board.count_line(&line);
            }
            Ok(Err(problem)) => choice.problem = Some(problem),
            Err(TryRecvError::Empty | TryRecvError::Disconnected) => break,
        }
    }
}

/// Applies a key. Returns whether the key ends the program.
#[expect(clippy::wildcard_enum_match_arm, reason = "every other key means nothing")]
fn ends_by(key: KeyEvent, choice: &mut Choice, board: &mut EventCounts) -> bool {
    let view = |choice: &mut Choice, view: TopView| {
        (choice.view, choice.selected) = (view, 0);
    };
    let at = TopView::ALL.iter().position(|it| *it == choice.view).unwrap_or_default();
    match key.code {
        KeyCode::Char('c') if key.modifiers.contains(KeyModifiers::CONTROL) => return true,
        KeyCode::Char('q') | KeyCode::Esc => return true,
        KeyCode::Char(digit @ '1'..='4') => {
            view(choice, TopView::ALL[digit as usize - '1' as usize]);
        }
        KeyCode::Tab | KeyCode::Right => view(choice, TopView::ALL[(at + 1) % TopView::ALL.len()]),
        KeyCode::BackTab | KeyCode::Left => {
            view(choice, TopView::ALL[(at + TopView::ALL.len() - 1) % TopView::ALL.len()]);
        }
        KeyCode::Char('s') => choice.order = choice.order.next(),
        KeyCode::Char('r') => choice.reversed = !choice.reversed,
        KeyCode::Char('p' | ' ') => choice.paused = !choice.paused,
        KeyCode::Char('c') => *board = EventCounts::default(),
        KeyCode::Up | KeyCode::Char('k') => choice.selected = choice.selected.saturating_sub(1),
        KeyCode::Down | KeyCode::Char('j') => {
            let order = (choice.order, choice.reversed);
            let (rows, ..) = board.rows(choice.view, order, 0, SHOWN);
            choice.selected = (choice.selected + 1).min(rows.len().saturating_sub(1));
        }
        KeyCode::Home => choice.selected = 0,
        _ => {}
    }
    false
}
