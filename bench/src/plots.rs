//! Charts of the figures (SVG), readable on light and dark pages.

use std::path::Path;

use anyhow::{Result, anyhow};
use plotters::chart::SeriesLabelPosition::{self, LowerLeft, UpperLeft};
use plotters::coord::Shift;
use plotters::prelude::*;

use crate::cluster::Size;
use crate::host;
use crate::hostile::{Hostile, SHAPES, SIZES};
use crate::packet::{self, FEW, MANY, ONE};
use crate::regression::Figures;
use crate::report::Results;

/// Width and height of a chart.
const CHART: (u32, u32) = (760, 440);
/// Height of a bar including the gap.
const BAR: i32 = 26;
/// Left edge of the bars, and their maximum length; the value follows each bar.
const BARS: (i32, i32) = (300, 360);
const FONT: &str = "sans-serif";
const COLOURS: [RGBColor; 6] = [
    RGBColor(0x1f, 0x77, 0xb4),
    RGBColor(0xff, 0x7f, 0x0e),
    RGBColor(0x2c, 0xa0, 0x2c),
    RGBColor(0xd6, 0x27, 0x28),
    RGBColor(0x94, 0x67, 0xbd),
    RGBColor(0x8c, 0x56, 0x4b),
];

/// Swaps black and white for dark pages; charts have no background.
const DARK: &str = "<style>@media (prefers-color-scheme: dark) { \
                    [fill=\"#000000\"] { fill: #e6edf3 } [stroke=\"#000000\"] { stroke: #e6edf3 } \
                    [fill=\"#FFFFFF\"] { fill: #0d1117 } }</style>\n";

/// Numbers of rules in [`by_rules`].
const RULES: [u32; 4] = [1, 100, 1000, 10_000];
/// Lines of [`by_rules`]: name, and names of its filters in the baseline for [`RULES`], where measured.
const FILTERS: [(&str, [Option<&str>; 4]); 4] = [
    (
        "netpold (1,000 pods; at 10,000 rules 100,000 pods)",
        [
            Some("netpold, 1000 pods, 1 rules"),
            None,
            None,
            Some("netpold, 100000 pods, 10000 rules"),
        ],
    ),
    (
        "nftables, one chain",
        [
            Some("nftables, chain, 1 rules"),
            Some("nftables, chain, 100 rules"),
            Some("nftables, chain, 1000 rules"),
            Some("nftables, chain, 10000 rules"),
        ],
    ),
    (
        "iptables, one chain",
        [
            Some("iptables, chain, 1 rules"),
            Some("iptables, chain, 100 rules"),
            Some("iptables, chain, 1000 rules"),
            Some("iptables, chain, 10000 rules"),
        ],
    ),
    (
        "nftables, verdict map (10,000 rules)",
        [None, None, None, Some("nftables, verdict map, 10000 rules")],
    ),
];

/// Family, case and flows of the lines in the charts.
const LINES: [(u8, &str, &str); 6] = [
    (4, "forward", "one flow"),
    (4, "denied", "one flow"),
    (4, "forward", "random flows"),
    (4, "new allowed", "random flows"),
    (6, "forward", "one flow"),
    (6, "new allowed", "random flows"),
];

/// Numbers of flows in [`by_flows`], and the names of their cases.
const FLOWS: [(u32, &str); 3] = [(1, ONE), (1000, FEW), (100_000, MANY)];
/// Lines of [`by_flows`].
const FLOW_LINES: [(u8, &str); 6] = [
    (4, "forward"),
    (4, "judged again"),
    (4, "new allowed"),
    (6, "forward"),
    (6, "judged again"),
    (6, "new allowed"),
];

/// The varied dimension of one chart: name, values, and the size for a value.
type Dimension = (&'static str, &'static [u32], fn(u32) -> Size);

const DIMENSIONS: [Dimension; 3] = [
    ("pods", &crate::PODS, |pods| Size { pods, ..Size::BASE }),
    ("rules", &crate::RULES, |rules| Size { rules, ..Size::BASE }),
    ("blocks", &crate::CIDRS, |cidrs| Size { cidrs, ..Size::BASE }),
];

/// File name and content.
type Picture = (String, String);

/// Label and length of a bar.
type Bar<'a> = (&'a str, f64);

/// Draws all results into a folder.
pub(crate) fn draw(results: &Results, folder: &Path) -> Result<()> {
    for (name, text) in packets(&results.figures())? {
        host::write(&folder.join(name), &text)?;
    }
    let caption = "Hostile tenants: ms until what they write is in force (sizes double)";
    hostile(&results.hostile, "hostile", caption, |f| f.first_ms, folder)?;
    let caption = "Beside hostile tenants: ms until another's edit is in force, p99";
    hostile(&results.hostile, "hostile-others", caption, |f| f.other_ms, folder)?;
    let forwarding: Vec<_> =
        results.forwarding.iter().map(|f| (f.filter.as_str(), f.total.min)).collect();
    bars(folder, "forwarding", "Forwarding: ns per packet on one core", &forwarding)?;
    let flood: Vec<_> =
        results.flood.iter().map(|f| (f.dropped_by.as_str(), f.total.min)).collect();
    bars(folder, "flood", "Denied flood: ns per packet on one core", &flood)?;
    let wire = |figure: fn(&crate::wire::WireFigure) -> f64| -> Vec<Bar<'_>> {
        results.wire.iter().map(|wire| (wire.filter.as_str(), figure(wire))).collect()
    };
    bars(folder, "stream", "One TCP stream: Gbit/s", &wire(|w| w.stream.best))?;
    bars(folder, "requests", "TCP request to answer: microseconds", &wire(|w| w.request_p50.min))?;
    bars(folder, "connections", "TCP connections per second", &wire(|w| w.connections.best))?;
    bars(folder, "datagrams", "Small UDP packets per second", &wire(|w| w.datagrams.best))
}

/// Cost by one dimension; the others stay at [`Size::BASE`].
fn lines(figures: &Figures, (name, sizes, with): Dimension) -> Result<Option<Picture>> {
    let series = LINES.map(|(family, case, flows)| {
        let ns = sizes.iter().map(|size| ns(figures, &with(*size), (family, case, flows)));
        (format!("IPv{family} {case}, {flows}"), ns.collect::<Vec<_>>())
    });
    let caption = format!("ns per packet over the empty program, by {name}");
    drawn(format!("packet-{name}.svg"), &caption, name, sizes, series)
}

/// Cost by number of flows, at [`Size::BASE`].
fn by_flows(figures: &Figures) -> Result<Option<Picture>> {
    let series = FLOW_LINES.map(|(family, case)| {
        let ns = FLOWS.iter().map(|(_, flows)| ns(figures, &Size::BASE, (family, case, flows)));
        (format!("IPv{family} {case}"), ns.collect::<Vec<_>>())
    });
    let caption = "ns per packet over the empty program, by flows";
    drawn("packet-flows.svg".into(), caption, "flows", &FLOWS.map(|(count, _)| count), series)
}

/// Nanoseconds above the empty program.
fn ns(figures: &Figures, size: &Size, (family, case, flows): (u8, &str, &str)) -> Option<f64> {
    let figure = figures.get(&packet::name(size, family, case, flows))?;
    Some(figure.ratio * figure.unit)
}

/// The chart, if at least two sizes were measured.
fn drawn<const LINES: usize>(
    file: String,
    caption: &str,
    name: &str,
    sizes: &[u32],
    series: [(String, Vec<Option<f64>>); LINES],
) -> Result<Option<Picture>> {
    let measured =
        |place: &usize| series.iter().any(|(_, ns)| ns.get(*place).is_some_and(Option::is_some));
    let places: Vec<usize> = (0..sizes.len()).filter(measured).collect();
    if places.len() < 2 {
        return Ok(None);
    }
    let sizes: Vec<u32> = places.iter().filter_map(|place| sizes.get(*place).copied()).collect();
    let series = series.map(|(name, ns)| {
        let points = places.iter().enumerate();
        let points = points.filter_map(|(x, place)| Some((x as f64, (*ns.get(*place)?)?)));
        (name, points.collect::<Vec<_>>())
    });
    let text = svg(CHART, |area| chart(area, [caption, name, "ns"], UpperLeft, &sizes, &series))?;
    Ok(Some((file, text)))
}

/// The charts of the pages: cost of a packet, and [`by_rules`]; without charts that lack figures.
pub(crate) fn of_baseline(figures: &Figures) -> Result<Vec<Picture>> {
    let mut pictures = packets(figures)?;
    pictures.extend(by_rules(figures)?);
    Ok(pictures)
}

fn packets(figures: &Figures) -> Result<Vec<Picture>> {
    let by_size = DIMENSIONS.map(|dimension| lines(figures, dimension));
    by_size.into_iter().chain([by_flows(figures)]).filter_map(Result::transpose).collect()
}

/// The chart of README.md: packets between two pods by number of rules, relative to no filter.
fn by_rules(figures: &Figures) -> Result<Option<Picture>> {
    let series = FILTERS.map(|(name, filters)| {
        let points = filters.iter().enumerate().filter_map(|(place, filter)| {
            let figure = figures.get(&format!("wire, datagrams: {}", (*filter)?))?;
            Some((place as f64, 100.0 / figure.ratio))
        });
        (name.to_owned(), points.collect::<Vec<_>>())
    });
    if series.iter().any(|(_, points)| points.is_empty()) {
        return Ok(None);
    }
    let caption = "UDP packets per second between two pods, % of no filter";
    let text = svg(CHART, |area| chart(area, [caption, "rules", "%"], LowerLeft, &RULES, &series))?;
    Ok(Some(("rules.svg".into(), text)))
}

/// Cost of hostile tenants by the size of their objects; `of` selects the figure in milliseconds.
fn hostile(
    figures: &[Hostile],
    name: &str,
    caption: &str,
    of: fn(&Hostile) -> f64,
    folder: &Path,
) -> Result<()> {
    if figures.is_empty() {
        return Ok(());
    }
    let series = SHAPES.map(|(shape, _)| {
        let points = SIZES.iter().enumerate().filter_map(|(place, size)| {
            let figure = figures.iter().find(|f| f.shape == shape && f.size == *size)?;
            Some((place as f64, of(figure)))
        });
        (shape.to_owned(), points.collect::<Vec<_>>())
    });
    let text =
        svg(CHART, |area| chart(area, [caption, "how many", "ms"], UpperLeft, &SIZES, &series))?;
    host::write(&folder.join(format!("{name}.svg")), &text)
}

type Drawn = std::result::Result<(), Box<dyn std::error::Error>>;
type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;

/// Text of a picture.
fn svg(size: (u32, u32), draw: impl FnOnce(&Area<'_>) -> Drawn) -> Result<String> {
    let mut text = String::new();
    let area = SVGBackend::with_string(&mut text, size).into_drawing_area();
    draw(&area).map_err(|error| anyhow!("cannot draw: {error}"))?;
    drop(area);
    let begin = text.find("<svg").unwrap_or_default();
    let content = text[begin..].find('>').map_or(begin, |end| begin + end + 1);
    text.insert_str(content, DARK);
    Ok(text)
}

/// A chart with a caption, the name of the varied dimension, and a unit.
fn chart(
    area: &Area<'_>,
    [caption, varied, unit]: [&str; 3],
    legend: SeriesLabelPosition,
    sizes: &[u32],
    series: &[(String, Vec<(f64, f64)>)],
) -> Drawn {
    let all = series.iter().flat_map(|(_, points)| points.iter().map(|(_, y)| *y));
    let highest = all.fold(1.0, f64::max) * 1.1;
    let mut chart = ChartBuilder::on(area)
        .caption(caption, (FONT, 18))
        .margin(12)
        .x_label_area_size(36)
        .y_label_area_size(48)
        .build_cartesian_2d(-0.2..sizes.len() as f64 - 0.8, 0.0..highest)?;
    let label = |place: &f64| {
        let size = sizes.get(place.round() as usize).filter(|_| place.fract() == 0.0);
        size.map_or_else(String::new, ToString::to_string)
    };
    chart
        .configure_mesh()
        .disable_x_mesh()
        .max_light_lines(0)
        .y_label_formatter(&|value| format!("{value:.0}"))
        .x_labels(sizes.len() * 2)
        .x_label_formatter(&label)
        .x_desc(varied)
        .y_desc(unit)
        .draw()?;
    for ((name, points), colour) in series.iter().zip(COLOURS) {
        let line = LineSeries::new(points.iter().copied(), colour.stroke_width(2)).point_size(3);
        chart
            .draw_series(line)?
            .label(name)
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 16, y)], colour.stroke_width(2)));
    }
    chart
        .configure_series_labels()
        .position(legend)
        .background_style(WHITE.mix(0.8))
        .border_style(BLACK.mix(0.2))
        .draw()?;
    area.present()?;
    Ok(())
}

/// One bar per figure; netpold's are highlighted.
fn bars(folder: &Path, name: &str, title: &str, figures: &[Bar<'_>]) -> Result<()> {
    if figures.is_empty() {
        return Ok(());
    }
    let size = (CHART.0, (figures.len() as u32 + 2) * BAR as u32);
    let text = svg(size, |area| draw_bars(area, title, figures))?;
    host::write(&folder.join(format!("{name}.svg")), &text)
}

fn draw_bars(area: &Area<'_>, title: &str, figures: &[Bar<'_>]) -> Drawn {
    let text = (FONT, 14).into_font();
    area.draw(&Text::new(title, (12, BAR / 3), (FONT, 18).into_font()))?;
    let longest = figures.iter().map(|(_, value)| *value).fold(f64::MIN_POSITIVE, f64::max);
    for (place, (label, value)) in figures.iter().enumerate() {
        let top = BAR * (place as i32 + 1) + BAR / 3;
        let end = BARS.0 + (value / longest * f64::from(BARS.1)) as i32;
        let colour =
            if label.starts_with("netpold") { COLOURS[0] } else { RGBColor(170, 170, 170) };
        area.draw(&Text::new(*label, (12, top + 4), text.clone()))?;
        area.draw(&Rectangle::new([(BARS.0, top), (end, top + BAR - 8)], colour.filled()))?;
        let digits = if *value < 1000.0 { format!("{value:.1}") } else { format!("{value:.0}") };
        area.draw(&Text::new(digits, (end + 6, top + 4), text.clone()))?;
    }
    area.present()?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::regression::Baseline;

    /// Run `cargo xtask bench --draw-baseline` after a change of either.
    #[test]
    fn the_committed_charts_show_the_committed_baseline() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR"));
        let baseline = Baseline::read(&folder.join("baseline.json")).unwrap();
        let pictures = of_baseline(&baseline.figures).unwrap();
        assert_eq!(pictures.len(), 5, "pods, rules, blocks, flows, and the project's README");
        for (name, text) in pictures {
            assert_eq!(std::fs::read_to_string(folder.join(&name)).unwrap(), text, "{name}");
        }
    }
}
